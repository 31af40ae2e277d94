/**
 * One icon for each state: told apart by shape, not by colour alone.
 */

import { LabIcon } from '@jupyterlab/ui-components';

import { State } from './model/seam';

function icon(name: string, path: string): LabIcon {
  const svgstr = `<svg xmlns="http://www.w3.org/2000/svg" width="16" height="16" viewBox="0 0 16 16"><path class="jp-icon3" fill="#616161" fill-rule="evenodd" d="${path}"/></svg>`;
  return new LabIcon({ name: `openai4s-provisioner:${name}`, svgstr });
}

/** A cloud of three machines, one above the other. */
export const clusterIcon = icon(
  'cluster',
  'M2 2h12v3.4H2zM2 6.3h12v3.4H2zM2 10.6h12V14H2zM4 3.2v1h1.4v-1zm0 4.3v1h1.4v-1zm0 4.3v1h1.4v-1z'
);

const hourglass = icon('starting', 'M4 1h8v3L9.2 8 12 12v3H4v-3l2.8-4L4 4zm1.5 1.5v1L8 7l2.5-3.5v-1z');
const tick = icon('ready', 'M8 1a7 7 0 1 1 0 14A7 7 0 0 1 8 1zm3.6 4.2L7 9.8 4.6 7.4 3.5 8.5 7 12l5.7-5.7z');
const broken = icon(
  'reconnecting',
  'M8 2a6 6 0 0 1 5.6 4H15l-2.5 3.2L10 6h1.9A4.4 4.4 0 0 0 4 6H2.4A6 6 0 0 1 8 2zM2.4 10H1l2.5-3.2L6 10H4.1A4.4 4.4 0 0 0 12 10h1.6A6 6 0 0 1 2.4 10z'
);
const ending = icon(
  'ending',
  'M8 1a7 7 0 1 1 0 14A7 7 0 0 1 8 1zm0 1.6a5.4 5.4 0 1 0 0 10.8A5.4 5.4 0 0 0 8 2.6zM5.5 5.5h5v5h-5z'
);
const ended = icon('ended', 'M3 3h10v10H3z');
const failed = icon('failed', 'M8 1.2 15.4 14H.6zM7.2 6v4h1.6V6zm0 5.2v1.6h1.6v-1.6z');
export const metIcon = tick;
export const missingIcon = hourglass;
export const laterIcon = icon(
  'later',
  'M8 2a6 6 0 1 1 0 12A6 6 0 0 1 8 2zm0 1.4a4.6 4.6 0 1 0 0 9.2 4.6 4.6 0 0 0 0-9.2z'
);

const ICONS: Record<State, LabIcon> = { starting: hourglass, ready: tick, reconnecting: broken, ending, ended };

export function stateIcon(state: State, hasFailed: boolean): LabIcon {
  return state === 'ended' && hasFailed ? failed : ICONS[state];
}
