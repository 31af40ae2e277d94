/**
 * By how much a session may be extended: what is offered to a person, within what its profile leaves. No DOM.
 */

const OFFERED_S = [15 * 60, 3600, 4 * 3600];
const USUAL_S = 3600;

export interface IExtension {
  seconds: number;
  /** As long as the profile allows. */
  isMost: boolean;
}

/** From the shortest to the longest that is allowed; none where nothing is. */
export function extensions(most: number): IExtension[] {
  const shorter = OFFERED_S.filter(seconds => seconds < most).map(seconds => ({ seconds, isMost: false }));
  return most > 0 ? [...shorter, { seconds: most, isMost: true }] : [];
}

/** What is chosen to begin with: an hour, or as much as there is. */
export function usual(most: number): number {
  return Math.min(USUAL_S, most);
}
