/**
 * The form of "New cluster notebook": profile, kernel, time, GPUs, memory and CPUs, inside what the profile allows.
 *
 * Loaded when it is first opened.
 */

import { Dialog, ReactWidget, showDialog } from '@jupyterlab/apputils';
import { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';

import { AmountName, choiceOf, faults, IChoice, inWords, isChoosable, LEAST } from '../model/launch';
import { IProfile } from '../model/seam';

export interface IFormOptions {
  title: string;
  accept: string;
  profiles: IProfile[];
  first: IChoice;
  kernelNames: Record<string, string>;
  trans: TranslationBundle;
}

/** Ask for a choice; null when the person cancelled. JupyterLab lets nobody accept a form with an invalid field. */
export async function askForChoice(options: IFormOptions): Promise<IChoice | null> {
  const form = new Form(options);
  const answer = await showDialog({
    title: options.title,
    body: form,
    buttons: [Dialog.cancelButton(), Dialog.okButton({ label: options.accept, ariaLabel: options.accept })],
    focusNodeSelector: 'select'
  });
  return answer.button.accept && Object.keys(form.faults).length === 0 ? form.getValue() : null;
}

class Form extends ReactWidget {
  constructor(private readonly _options: IFormOptions) {
    super();
    this._choice = _options.first;
    this.addClass('openai4s-Form');
  }

  getValue(): IChoice {
    return this._choice;
  }

  get faults(): Partial<Record<AmountName, string>> {
    return faults(this._profile, this._choice, this._options.trans);
  }

  protected override render(): React.JSX.Element {
    const { trans, profiles, kernelNames } = this._options;
    const profile = this._profile;
    const fields = FIELDS.filter(field => isChoosable(profile, field.name));
    return (
      <div className="openai4s-Form-fields">
        <Choice
          label={trans.__('Profile')}
          value={profile.name}
          among={profiles.map(each => [each.name, each.display_name || each.name])}
          chosen={name => {
            const next = profiles.find(each => each.name === name);
            this._set(next ? choiceOf(next) : this._choice);
          }}
        />
        <Choice
          label={trans.__('Kernel')}
          value={this._choice.kernelName}
          among={profile.kernelspecs.map(name => [name, kernelNames[name] ?? name])}
          chosen={kernelName => {
            this._set({ ...this._choice, kernelName });
          }}
        />
        {fields.map(field => this._amount(field, profile))}
        {fields.length === 0 && (
          <p className="openai4s-Amount-hint">
            {trans.__('Time and resources of this profile are fixed by your site.')}
          </p>
        )}
      </div>
    );
  }

  private _amount(field: IField, profile: IProfile): React.JSX.Element {
    const { trans } = this._options;
    const { name, unit } = field;
    const most = profile.limits[name];
    return (
      <Amount
        key={`${profile.name}-${name}`}
        id={`openai4s-amount-${name}`}
        label={field.label(trans)}
        hint={trans.__('at most %1', inWords(name, most, trans))}
        fault={this.faults[name]}
        value={this._choice.amounts[name] / unit}
        least={LEAST[name] / unit}
        most={most / unit}
        step={field.step}
        chosen={value => {
          const amounts = { ...this._choice.amounts, [name]: Math.round(value * unit) };
          this._set({ ...this._choice, amounts });
        }}
      />
    );
  }

  private get _profile(): IProfile {
    const { profiles } = this._options;
    return profiles.find(each => each.name === this._choice.profile) ?? profiles[0];
  }

  private _set(choice: IChoice): void {
    this._choice = choice;
    this.update();
  }

  private _choice: IChoice;
}

interface IField {
  name: AmountName;
  /** So many of the server's units are one of the person's. */
  unit: number;
  step: number | 'any';
  label: (trans: TranslationBundle) => string;
}

const FIELDS: IField[] = [
  { name: 'walltime_s', unit: 3600, step: 'any', label: trans => trans.__('Time (hours)') },
  { name: 'gpus', unit: 1, step: 1, label: trans => trans.__('GPUs') },
  { name: 'memory_mb', unit: 1024, step: 'any', label: trans => trans.__('Memory (GB)') },
  { name: 'cpus', unit: 1, step: 1, label: trans => trans.__('CPUs') }
];

function Choice(props: {
  label: string;
  value: string;
  among: [string, string][];
  chosen: (value: string) => void;
}): React.JSX.Element {
  return (
    <label>
      <span>{props.label}</span>
      <select
        className="jp-mod-styled"
        value={props.value}
        onChange={event => {
          props.chosen(event.target.value);
        }}
      >
        {props.among.map(([value, label]) => (
          <option key={value} value={value}>
            {label}
          </option>
        ))}
      </select>
    </label>
  );
}

function Amount(props: {
  id: string;
  label: string;
  hint: string;
  fault: string | undefined;
  value: number;
  least: number;
  most: number;
  step: number | 'any';
  chosen: (value: number) => void;
}): React.JSX.Element {
  return (
    <div className="openai4s-Amount">
      <label htmlFor={props.id}>{props.label}</label>
      <input
        id={props.id}
        className="jp-mod-styled"
        type="number"
        required
        min={props.least}
        max={props.most}
        step={props.step}
        defaultValue={props.value}
        aria-describedby={`${props.id}-hint`}
        aria-invalid={props.fault !== undefined}
        onChange={event => {
          props.chosen(event.target.value === '' ? NaN : Number(event.target.value));
        }}
      />
      <span id={`${props.id}-hint`} className={props.fault ? 'openai4s-Amount-fault' : 'openai4s-Amount-hint'}>
        {props.fault ?? props.hint}
      </span>
    </div>
  );
}
