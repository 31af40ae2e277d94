/**
 * The panel's place in the left area. Its content is loaded when it is first shown.
 */

import { TranslationBundle } from '@jupyterlab/translation';
import { Panel } from '@lumino/widgets';

import { clusterIcon } from '../icons';
import type { IPanelOptions, PanelContent } from './panel';

export class SidePanel extends Panel {
  constructor(
    private readonly _options: IPanelOptions,
    trans: TranslationBundle
  ) {
    super();
    this.id = 'openai4s-panel';
    this.addClass('openai4s-Panel');
    this.title.icon = clusterIcon;
    this.title.caption = trans.__('Cluster sessions');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', trans.__('Cluster sessions'));
  }

  async select(workloadId: string): Promise<void> {
    (await this._load()).select(workloadId);
  }

  protected override onBeforeShow(): void {
    void this._load();
    this._options.model.readSoon();
  }

  private _load(): Promise<PanelContent> {
    this._content ??= import('./panel').then(({ PanelContent }) => {
      const content = new PanelContent(this._options);
      this.addWidget(content);
      return content;
    });
    return this._content;
  }

  private _content: Promise<PanelContent> | undefined;
}
