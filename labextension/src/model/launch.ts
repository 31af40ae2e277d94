/**
 * What a person asks for in "New cluster notebook": the choice, its limits, and what is wrong with it. No DOM.
 */

import { JSONObject } from '@lumino/coreutils';
import { TranslationBundle } from '@jupyterlab/translation';

import { IAmounts, IProfile } from './seam';
import { duration, memory } from './words';

/** Under this name a notebook's metadata remembers the choice. */
export const METADATA_KEY = 'openai4s';

export interface IChoice {
  profile: string;
  kernelName: string;
  amounts: IAmounts;
}

export const AMOUNTS = ['walltime_s', 'gpus', 'memory_mb', 'cpus'] as const;
export type AmountName = (typeof AMOUNTS)[number];

/** What a notebook remembers: whatever its metadata holds, some of it perhaps missing or no longer on offer. */
export interface IRemembered {
  profile: string;
  kernelName: string;
  amounts: Partial<IAmounts>;
}

/** The least that may be asked for, as the server has it. What a profile gives by itself may be 0: no limit stated. */
export const LEAST: IAmounts = { walltime_s: 60, gpus: 0, memory_mb: 1, cpus: 1 };

/** The choice to begin with: what was remembered, as far as it is still on offer, else the default profile. */
export function firstChoice(profiles: IProfile[], remembered: IRemembered | null): IChoice | null {
  const offered = profiles.filter(each => each.kernelspecs.length > 0);
  const profile =
    offered.find(each => each.name === remembered?.profile) ?? offered.find(each => each.is_default) ?? offered.at(0);
  if (profile === undefined) {
    return null;
  }
  const choice = choiceOf(profile);
  if (remembered === null || remembered.profile !== profile.name) {
    return choice;
  }
  const kernelName = profile.kernelspecs.includes(remembered.kernelName) ? remembered.kernelName : choice.kernelName;
  const amounts = { ...choice.amounts };
  for (const name of AMOUNTS) {
    const amount = remembered.amounts[name];
    if (amount !== undefined && isWithin(profile, name, amount)) {
      amounts[name] = amount;
    }
  }
  return { profile: profile.name, kernelName, amounts };
}

/** What a profile gives when nothing else is asked for. */
export function choiceOf(profile: IProfile): IChoice {
  const { walltime_s, gpus, memory_mb, cpus } = profile.resources;
  return {
    profile: profile.name,
    kernelName: profile.kernelspecs.at(0) ?? '',
    amounts: { walltime_s, gpus, memory_mb, cpus }
  };
}

/** Whether there is anything to choose: where the least is the most, there is not. */
export function isChoosable(profile: IProfile, name: AmountName): boolean {
  return profile.limits[name] > LEAST[name];
}

/** What is wrong with the choice, by field: one sentence each. Empty when nothing is. */
export function faults(
  profile: IProfile,
  choice: IChoice,
  trans: TranslationBundle
): Partial<Record<AmountName, string>> {
  const found: Partial<Record<AmountName, string>> = {};
  for (const name of AMOUNTS) {
    if (isChoosable(profile, name) && !isWithin(profile, name, choice.amounts[name])) {
      const most = inWords(name, profile.limits[name], trans);
      const least = inWords(name, LEAST[name], trans);
      found[name] = trans.__('Choose between %1 and %2: this profile allows no more.', least, most);
    }
  }
  return found;
}

export function inWords(name: AmountName, amount: number, trans: TranslationBundle): string {
  switch (name) {
    case 'walltime_s':
      return duration(amount, trans);
    case 'memory_mb':
      return memory(amount, trans);
    default:
      return String(amount);
  }
}

/** As a notebook's metadata holds it. */
export function toMetadata(choice: IChoice): JSONObject {
  return { profile: choice.profile, kernel_name: choice.kernelName, resources: { ...choice.amounts } };
}

/** The choice that a notebook's metadata holds; null when there is none, or something else is in its place. */
export function fromMetadata(value: unknown): IRemembered | null {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    return null;
  }
  const { profile, kernel_name, resources } = value as Record<string, unknown>;
  if (typeof profile !== 'string' || typeof resources !== 'object' || resources === null) {
    return null;
  }
  const amounts: Partial<IAmounts> = {};
  for (const name of AMOUNTS) {
    const amount: unknown = (resources as Record<string, unknown>)[name];
    if (typeof amount === 'number' && Number.isInteger(amount)) {
      amounts[name] = amount;
    }
  }
  return { profile, kernelName: typeof kernel_name === 'string' ? kernel_name : '', amounts };
}

function isWithin(profile: IProfile, name: AmountName, amount: number): boolean {
  const isOffered = Number.isInteger(amount) && amount >= LEAST[name] && amount <= profile.limits[name];
  return isOffered || amount === profile.resources[name];
}
