/**
 * The form of "Extend": how much longer a session may run, and until when that would be. Only what its profile allows
 * is offered; the site may still refuse, and then its sentence is shown.
 *
 * Loaded when it is first opened.
 */

import { Dialog, ReactWidget, showDialog } from '@jupyterlab/apputils';
import { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';

import { extensions, usual } from '../model/extend';
import { IBatch, ISession } from '../model/seam';
import { clock, duration, secondsUntil, title } from '../model/words';

/** The seconds that a person chose; null when they cancelled. */
export async function askForExtension(workload: ISession | IBatch, trans: TranslationBundle): Promise<number | null> {
  const form = new Form(workload, trans);
  const answer = await showDialog({
    title: trans.__('Extend %1', title(workload)),
    body: form,
    buttons: [Dialog.cancelButton(), Dialog.okButton({ label: trans.__('Extend') })],
    focusNodeSelector: 'input:checked'
  });
  return answer.button.accept ? form.getValue() : null;
}

class Form extends ReactWidget {
  constructor(
    private readonly _workload: ISession | IBatch,
    private readonly _trans: TranslationBundle
  ) {
    super();
    this._seconds = usual(_workload.most_extension_s);
    this.addClass('openai4s-Form');
  }

  getValue(): number {
    return this._seconds;
  }

  protected override render(): React.JSX.Element {
    const trans = this._trans;
    const { walltime_ends_at: endsAt, most_extension_s: most } = this._workload;
    const now = new Date();
    const left = secondsUntil(endsAt, now) ?? 0;
    const ends = endsAt === null ? '' : clock(endsAt, now);
    return (
      <fieldset className="openai4s-Extend">
        <legend>{trans.__('Its time ends at %1, in %2. How much longer?', ends, duration(left, trans))}</legend>
        {extensions(most).map(({ seconds, isMost }) => (
          <label key={seconds}>
            <input
              type="radio"
              name="openai4s-extension"
              value={seconds}
              defaultChecked={seconds === this._seconds}
              onChange={() => {
                this._seconds = seconds;
              }}
            />
            <span>
              {trans.__('%1, until %2', duration(seconds, trans), until(endsAt, seconds, now))}
              {isMost && <small>{trans.__('the most that its profile allows')}</small>}
            </span>
          </label>
        ))}
      </fieldset>
    );
  }

  private _seconds: number;
}

function until(endsAt: string | null, seconds: number, now: Date): string {
  return endsAt === null ? '' : clock(new Date(Date.parse(endsAt) + seconds * 1000).toISOString(), now);
}
