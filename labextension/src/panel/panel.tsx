/**
 * The panel's content: all sessions and commands, or a sentence that says why there are none and what to do.
 *
 * Loaded when the panel is first shown.
 */

import { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget, UseSignal } from '@jupyterlab/ui-components';
import React from 'react';

import { ActionName } from '../model/notices';
import { IBatch, ISession } from '../model/seam';
import { SessionsModel } from '../model/sessions';
import { clock } from '../model/words';
import { Card } from './card';

export interface IPanelOptions {
  model: SessionsModel;
  trans: TranslationBundle;
  act: (name: ActionName, workload: ISession | IBatch) => void;
  newNotebook: () => void;
}

export class PanelContent extends ReactWidget {
  constructor(private readonly _options: IPanelOptions) {
    super();
    this.addClass('openai4s-Panel-content');
  }

  /** Bring one of them into view. */
  select(workloadId: string): void {
    this._selected = workloadId;
    this.update();
    requestAnimationFrame(() => {
      const card = this.node.querySelector(`[data-workload="${CSS.escape(workloadId)}"]`);
      card?.scrollIntoView({ block: 'nearest' });
    });
  }

  protected override render(): React.JSX.Element {
    return (
      <UseSignal signal={this._options.model.changed}>
        {() => <Content {...this._options} selected={this._selected} />}
      </UseSignal>
    );
  }

  private _selected = '';
}

function Content(props: IPanelOptions & { selected: string }): React.JSX.Element {
  const { model, trans } = props;
  const offline = model.snapshot?.offline ?? null;
  if (model.reach === 'absent') {
    return (
      <Message
        title={trans.__('This server cannot start sessions')}
        text={trans.__(
          'Its part of the extension is not enabled. Run "jupyter server extension enable openai4s_provisioner", then start the server again.'
        )}
      />
    );
  }
  if (model.snapshot === null) {
    return model.reach === 'unreachable' ? (
      <Unreachable {...props} />
    ) : (
      <Message title={trans.__('Asking the server…')} />
    );
  }
  const isEmpty = model.sessions.length === 0 && model.batches.length === 0;
  return (
    <>
      {model.reach === 'unreachable' && <Unreachable {...props} />}
      {offline !== null && (
        <Message
          isAlert
          title={trans.__('The cluster does not answer')}
          text={trans.__('%1 What is shown is the last that was known.', offline)}
        />
      )}
      {isEmpty && <Empty {...props} />}
      <Group {...props} title={trans.__('Sessions')} workloads={ordered(model.sessions)} />
      <Group {...props} title={trans.__('Commands')} workloads={ordered(model.batches)} />
    </>
  );
}

function Unreachable({ model, trans }: IPanelOptions): React.JSX.Element {
  const asOf = model.snapshot?.as_of;
  const known = asOf ? trans.__('What is shown is as of %1.', clock(asOf, new Date())) : '';
  return (
    <div className="openai4s-Message" role="alert">
      <h3>{trans.__('The Jupyter server does not answer')}</h3>
      <p>{trans.__('Sessions go on without it for a while. It is asked again by itself.')}</p>
      {known && <p>{known}</p>}
      <button
        className="jp-mod-styled jp-mod-reject"
        onClick={() => {
          model.readSoon();
        }}
      >
        {trans.__('Ask now')}
      </button>
    </div>
  );
}

function Empty({ trans, newNotebook }: IPanelOptions): React.JSX.Element {
  return (
    <div className="openai4s-Message">
      <h3>{trans.__('No session')}</h3>
      <p>{trans.__('Pick a session kernel in the launcher, or choose what you need:')}</p>
      <button className="jp-mod-styled jp-mod-accept" onClick={newNotebook}>
        {trans.__('New cluster notebook…')}
      </button>
    </div>
  );
}

function Message(props: { title: string; text?: string; isAlert?: boolean }): React.JSX.Element {
  return (
    <div className="openai4s-Message" role={props.isAlert ? 'alert' : undefined}>
      <h3>{props.title}</h3>
      {props.text && <p>{props.text}</p>}
    </div>
  );
}

function Group(
  props: IPanelOptions & { selected: string; title: string; workloads: (ISession | IBatch)[] }
): React.JSX.Element | null {
  if (props.workloads.length === 0) {
    return null;
  }
  const now = new Date();
  return (
    <section aria-label={props.title}>
      <h2>{props.title}</h2>
      <ul className="openai4s-Cards">
        {props.workloads.map(workload => (
          <Card
            key={workload.workload_id}
            workload={workload}
            now={now}
            isSelected={workload.workload_id === props.selected}
            isReplaced={isReplaced(workload, props.model)}
            trans={props.trans}
            act={props.act}
          />
        ))}
      </ul>
    </section>
  );
}

/** Its notebook has another session by now, so there is nothing to start again. */
function isReplaced(workload: ISession | IBatch, model: SessionsModel): boolean {
  const path = workload.kind === 'SESSION' ? workload.kernels.at(0)?.path : null;
  const newest = typeof path === 'string' ? model.ofPath(path) : undefined;
  return newest !== undefined && newest.workload_id !== workload.workload_id && newest.state !== 'ended';
}

/** What is alive comes first, then the newest. */
function ordered<T extends ISession | IBatch>(workloads: readonly T[]): T[] {
  const rank = (each: T): number => (each.state === 'ended' ? 1 : 0);
  return [...workloads].sort((a, b) => rank(a) - rank(b) || b.created_at.localeCompare(a.created_at));
}
