/**
 * The badge beside a notebook or in the status bar: icon and sentence of one session, and a way to the panel.
 */

import { ITranslator, TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import React from 'react';

import { stateIcon } from '../icons';
import { ISession } from '../model/seam';
import { SessionsModel } from '../model/sessions';
import { badgeText, hasFailed } from '../model/words';

export interface IBadgeOptions {
  model: SessionsModel;
  translator: ITranslator;
  /** Whose session is told; nothing is shown while it is undefined. */
  session: () => ISession | undefined;
  open: (session: ISession) => void;
  className: string;
}

export class Badge extends ReactWidget {
  constructor(private readonly _options: IBadgeOptions) {
    super();
    this._trans = _options.translator.load('openai4s_provisioner');
    this.addClass('openai4s-Badge');
    this.addClass(_options.className);
    this.hide();
    _options.model.changed.connect(this.refresh, this);
    this.refresh();
  }

  /** Look again at whose session this is. */
  refresh(): void {
    this.setHidden(this._options.session() === undefined);
    this.update();
  }

  override dispose(): void {
    this._options.model.changed.disconnect(this.refresh, this);
    super.dispose();
  }

  protected override render(): React.JSX.Element {
    const session = this._options.session();
    if (session === undefined) {
      return <></>;
    }
    const trans = this._trans;
    const failed = hasFailed(session);
    const known = badgeText(session, new Date(), trans);
    const isOld = this._options.model.reach === 'unreachable';
    const text = isOld ? trans.__('The Jupyter server does not answer. Last known: %1', known) : known;
    const Icon = stateIcon(session.state, failed);
    return (
      <button
        className="openai4s-Badge-button"
        data-state={failed ? 'failed' : session.state}
        data-missing={session.state === 'starting' ? (session.start ? 'admission' : (session.missing ?? '')) : ''}
        title={trans.__('Cluster session. %1 Show details.', text)}
        onClick={() => {
          this._options.open(session);
        }}
      >
        <Icon.react tag="span" className="openai4s-Badge-icon" aria-hidden="true" />
        <span className="openai4s-Badge-text" role="status">
          {text}
        </span>
      </button>
    );
  }

  private readonly _trans: TranslationBundle;
}
