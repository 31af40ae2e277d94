/**
 * The log of one session or command in a tab of its own: the newest lines, read again on request.
 *
 * Loaded when a log is first shown.
 */

import { MainAreaWidget, ToolbarButton } from '@jupyterlab/apputils';
import { TranslationBundle } from '@jupyterlab/translation';
import { refreshIcon } from '@jupyterlab/ui-components';
import { Widget } from '@lumino/widgets';

import { Client } from '../client';
import { clusterIcon } from '../icons';

const LINES = 1000;

export interface ILogOptions {
  client: Client;
  trans: TranslationBundle;
  workloadId: string;
  kind: 'SESSION' | 'BATCH';
  title: string;
}

export function logTabId(workloadId: string): string {
  return `openai4s-log-${workloadId}`;
}

export function logTab(options: ILogOptions): MainAreaWidget<LogView> {
  const { trans } = options;
  const view = new LogView(options);
  const tab = new MainAreaWidget({ content: view });
  tab.id = logTabId(options.workloadId);
  tab.title.label = trans.__('Log: %1', options.title);
  tab.title.icon = clusterIcon;
  tab.title.closable = true;
  tab.toolbar.addItem(
    'read',
    new ToolbarButton({
      icon: refreshIcon,
      label: trans.__('Read again'),
      onClick: () => {
        void view.read();
      }
    })
  );
  void view.read();
  return tab;
}

class LogView extends Widget {
  constructor(private readonly _options: ILogOptions) {
    super();
    this.addClass('openai4s-Log');
    this._text.tabIndex = 0;
    this._text.setAttribute('role', 'log');
    this._text.setAttribute('aria-label', _options.trans.__('Log'));
    this.node.append(this._text);
  }

  async read(): Promise<void> {
    const { client, trans, workloadId, kind } = this._options;
    try {
      const { lines } = await client.log(workloadId, kind, LINES);
      this._text.textContent = lines.length > 0 ? lines.join('\n') : trans.__('Nothing has been written yet.');
    } catch (error) {
      const why = error instanceof Error ? error.message : String(error);
      this._text.textContent = trans.__('The log could not be read: %1', why);
    }
    this._text.scrollTop = this._text.scrollHeight;
  }

  private readonly _text = document.createElement('pre');
}
