/**
 * The log of one session or command in a tab of its own: its newest lines, and those that are added while it is seen.
 *
 * A screen reader is not told of every line, only of how it stands with the log. Who has scrolled up stays there.
 * Loaded when a log is first shown.
 */

import { MainAreaWidget } from '@jupyterlab/apputils';
import { TranslationBundle } from '@jupyterlab/translation';
import { Message } from '@lumino/messaging';
import { ISignal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';

import { Client } from '../client';
import { clusterIcon } from '../icons';
import { LogFollower, MOST_LINES } from '../model/log';
import { IAttention } from '../model/sessions';

/** So near to the end, new lines keep it in view. */
const NEAR_PX = 24;

export interface ILogOptions {
  client: Client;
  trans: TranslationBundle;
  attention: IAttention;
  workloadId: string;
  kind: 'SESSION' | 'BATCH';
  title: string;
  /** How many workers log. */
  ranks: number;
  /** Their machines, as far as they are known. */
  hosts: string[];
}

export function logId(workloadId: string): string {
  return `openai4s-log-${workloadId}`;
}

export function logTab(options: ILogOptions): MainAreaWidget<LogView> {
  const { trans, client, workloadId, kind } = options;
  const follower = new LogFollower({
    follow: (rank, lines, after, signal) => client.follow(workloadId, kind, { rank, lines, after, signal })
  });
  const view = new LogView(options, follower);
  const tab = new MainAreaWidget({ content: view });
  tab.id = logId(workloadId);
  tab.title.label = trans.__('Log: %1', options.title);
  tab.title.icon = clusterIcon;
  tab.title.closable = true;
  tab.toolbar.addItem('pause', pauseButton(follower, trans));
  if (options.ranks > 1) {
    tab.toolbar.addItem('rank', rankChoice(options, follower));
  }
  tab.toolbar.addItem('state', stateLine(follower, trans));
  return tab;
}

class LogView extends Widget {
  constructor(
    options: ILogOptions,
    private readonly _follower: LogFollower
  ) {
    super();
    this.addClass('openai4s-Log');
    this._attention = options.attention;
    this._trans = options.trans;
    this._text.tabIndex = 0;
    this._text.setAttribute('role', 'log');
    this._text.setAttribute('aria-live', 'off');
    this._text.setAttribute('aria-label', options.trans.__('Log'));
    this._end.className = 'openai4s-Log-end';
    this._newest.className = 'openai4s-Log-newest jp-mod-styled jp-mod-reject';
    this._newest.textContent = options.trans.__('Newest lines');
    this._newest.hidden = true;
    this._newest.addEventListener('click', () => {
      this._goToEnd();
      this._text.focus();
    });
    this._text.addEventListener('scroll', () => {
      this._isAtEnd = this._text.scrollHeight - this._text.scrollTop - this._text.clientHeight < NEAR_PX;
      this._newest.hidden = this._isAtEnd;
    });
    this.node.append(this._text, this._newest);
    _follower.added.connect(this._onAdded, this);
    _follower.stateChanged.connect(this._onState, this);
    this._attention.changed.connect(this._onAttention, this);
    this._onState();
  }

  override dispose(): void {
    this._attention.changed.disconnect(this._onAttention, this);
    this._follower.dispose();
    super.dispose();
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this._onAttention();
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this._onAttention();
  }

  protected override onAfterHide(message: Message): void {
    super.onAfterHide(message);
    this._onAttention();
  }

  protected override onResize(): void {
    this._keepEnd();
  }

  private _onAttention(): void {
    this._follower.see(this.isVisible && this._attention.isLookedAt);
    this._keepEnd();
  }

  private _onAdded(_: unknown, lines: string[] | null): void {
    if (lines === null) {
      this._text.replaceChildren();
      this._isAtEnd = true;
      return;
    }
    const before = this._text.scrollHeight;
    const nodes = lines.map(line => {
      const node = document.createElement('span');
      node.textContent = `${line}\n`;
      return node;
    });
    this._end.remove();
    const surplus = this._text.childElementCount + nodes.length - MOST_LINES;
    [...this._text.children].slice(0, Math.max(0, surplus)).forEach(node => {
      node.remove();
    });
    // Who reads further up goes on reading the same lines, though the oldest went.
    const gone = surplus > 0 ? before - this._text.scrollHeight : 0;
    this._text.append(...nodes);
    if (this._isAtEnd) {
      this._goToEnd();
    } else if (gone > 0) {
      this._text.scrollTop -= gone;
    }
  }

  /** Under the last line stands why none follows, or that there is none. */
  private _onState(): void {
    const { state, told } = this._follower;
    const isEmpty = this._text.querySelector('span') === null;
    const text =
      state === 'ended'
        ? told || this._trans.__('It is over.')
        : state === 'refused'
          ? this._trans.__('The log could not be read: %1', told)
          : isEmpty && state === 'following'
            ? this._trans.__('Nothing has been written yet.')
            : '';
    this._end.textContent = isEmpty && state === 'ended' ? this._trans.__('No log is kept of it. %1', text) : text;
    if (text) {
      this._text.append(this._end);
    } else {
      this._end.remove();
    }
    this._keepEnd();
  }

  private _keepEnd(): void {
    if (this._isAtEnd) {
      this._goToEnd();
    }
  }

  private _goToEnd(): void {
    this._text.scrollTop = this._text.scrollHeight;
  }

  private readonly _attention: IAttention;
  private readonly _trans: TranslationBundle;
  private readonly _text = document.createElement('pre');
  private readonly _end = document.createElement('p');
  private readonly _newest = document.createElement('button');
  private _isAtEnd = true;
}

function pauseButton(follower: LogFollower, trans: TranslationBundle): Widget {
  const button = document.createElement('button');
  button.className = 'openai4s-Log-pause jp-mod-styled jp-mod-reject';
  const isStuck = (): boolean => follower.state === 'interrupted' || follower.state === 'refused';
  button.addEventListener('click', () => {
    follower.pause(!follower.isPaused && !isStuck());
  });
  const widget = new Widget({ node: button });
  watch(follower.stateChanged, widget, () => {
    button.textContent = isStuck() ? trans.__('Try now') : follower.isPaused ? trans.__('Follow') : trans.__('Pause');
    button.disabled = follower.state === 'ended';
  });
  return widget;
}

function rankChoice({ ranks, hosts, trans }: ILogOptions, follower: LogFollower): Widget {
  const select = document.createElement('select');
  select.className = 'openai4s-Log-rank';
  select.setAttribute('aria-label', trans.__('Whose log'));
  select.add(new Option(trans.__('All %1 workers', ranks), ''));
  for (let rank = 0; rank < ranks; rank++) {
    const host = hosts.at(rank);
    const label = host ? trans.__('Worker %1 (%2)', rank, host) : trans.__('Worker %1', rank);
    select.add(new Option(label, String(rank)));
  }
  select.addEventListener('change', () => {
    follower.choose(select.value === '' ? null : Number(select.value));
  });
  return new Widget({ node: select });
}

/** How it stands with the log, for everybody, and said aloud. */
function stateLine(follower: LogFollower, trans: TranslationBundle): Widget {
  const line = new Widget({ node: document.createElement('span') });
  line.addClass('openai4s-Log-state');
  line.node.setAttribute('role', 'status');
  watch(follower.stateChanged, line, () => {
    line.node.dataset['state'] = follower.state;
    line.node.textContent = {
      connecting: trans.__('Connecting…'),
      following: trans.__('New lines are shown as they come.'),
      paused: trans.__('Paused.'),
      unseen: '',
      crowded: trans.__('Other logs are followed already: close or pause one of them.'),
      interrupted: follower.told
        ? trans.__('%1 It is tried again by itself.', follower.told)
        : trans.__('The server does not answer. It is asked again by itself.'),
      refused: trans.__('The log could not be read.'),
      ended: trans.__('It is over: nothing more will come.')
    }[follower.state];
  });
  return line;
}

function watch(signal: ISignal<unknown, void>, widget: Widget, look: () => void): void {
  signal.connect(look);
  widget.disposed.connect(() => signal.disconnect(look));
  look();
}
