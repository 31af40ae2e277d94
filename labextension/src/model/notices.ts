/**
 * Which notifications a person should see now: a pure function of the newest snapshot and of what was seen before.
 *
 * The answer is the whole set, so that a lost event, a doubled one and a reloaded page are the same easy case. Showing
 * and taking back is done elsewhere.
 */

import { TranslationBundle } from '@jupyterlab/translation';

import { ISession, ISnapshot } from './seam';
import { badgeText, clock, duration, hasNotebook, secondsUntil, title } from './words';

export type ActionName = 'stop' | 'keep' | 'extend' | 'start-again' | 'log' | 'show';

export interface IAction {
  name: ActionName;
  label: string;
  caption: string;
}

export interface INotice {
  /** The same key is the same notification, with another text. */
  key: string;
  kind: 'in-progress' | 'success' | 'info' | 'warning' | 'error';
  text: string;
  session: ISession;
  actions: IAction[];
  /** Closes by itself after a while. */
  isPassing: boolean;
}

/** Which of them a person wants, from the settings. */
export interface INoticeChoice {
  starting: boolean;
  ending: boolean;
  ended: boolean;
}

/** The end of an allocation is warned of so long before, if no event came first. */
const WALLTIME_WARN_S = 300;
const SAME_END_MS = 60_000;
/** What ends by a person's own hand needs no notification. */
const EXPECTED_ENDS = new Set(['USER_CANCELLED']);

export class NoticeBoard {
  constructor(private readonly _trans: TranslationBundle) {}

  /** An event warned of, or took back, the end of an allocation. */
  walltimeWarned(workloadId: string, isWarned: boolean): void {
    if (isWarned) {
      this._walltimeWarned.add(workloadId);
    } else {
      this._walltimeWarned.delete(workloadId);
    }
  }

  /**
   * The notifications for this snapshot. `isOpenHere` tells which kernels belong to something open in this page: only
   * their start is followed by a notification.
   */
  wanted(snapshot: ISnapshot, isOpenHere: (kernelId: string) => boolean, now: Date, choice: INoticeChoice): INotice[] {
    const notices: INotice[] = [];
    for (const session of snapshot.sessions) {
      const seen = this._seen.get(session.workload_id);
      if (session.recoveries > (this._recoveries.get(session.workload_id) ?? session.recoveries)) {
        this._walltimeWarned.delete(session.workload_id); // that was the end of an allocation which is lost
      }
      this._recoveries.set(session.workload_id, session.recoveries);
      const isHere = session.kernels.some(kernel => isOpenHere(kernel.kernel_id));
      if (session.state !== 'ended') {
        this._seen.set(session.workload_id, look(session, seen));
      }
      if (choice.starting && isHere) {
        notices.push(...this._start(session, now));
      }
      if (choice.ending) {
        notices.push(...this._ending(session, now));
      }
      if (choice.ended) {
        notices.push(...this._lost(session), ...this._ended(session));
      }
    }
    return notices;
  }

  private _start(session: ISession, now: Date): INotice[] {
    const trans = this._trans;
    // By its kernel: a start that is checked becomes a session, and stays one notification.
    const kernelId = session.kernels.at(0)?.kernel_id ?? session.workload_id;
    const key = `start:${kernelId}`;
    if (session.state === 'starting') {
      this._started.add(kernelId);
      const text = trans.__('%1: %2', title(session), badgeText(session, now, trans));
      const actions = [
        {
          name: 'stop' as const,
          label: trans.__('Cancel'),
          caption: trans.__('Stop this session; nothing stays queued')
        },
        { name: 'show' as const, label: trans.__('Details'), caption: trans.__('Show this session in the panel') }
      ];
      return [{ key, kind: 'in-progress', text, session, actions, isPassing: false }];
    }
    if (session.state === 'ready' && this._started.has(kernelId)) {
      const text = trans.__('%1: the kernel is ready', title(session));
      return [{ key, kind: 'success', text, session, actions: [], isPassing: true }];
    }
    return [];
  }

  private _ending(session: ISession, now: Date): INotice[] {
    if (session.state === 'ended' || session.state === 'ending') {
      return [];
    }
    return [...this._leaseEnd(session, now), ...this._walltimeEnd(session, now)];
  }

  private _leaseEnd(session: ISession, now: Date): INotice[] {
    const trans = this._trans;
    const lease = session.kernels.map(kernel => kernel.lease).find(each => each?.warned);
    const left = secondsUntil(session.lease_ends_at, now);
    if (!lease || session.lease_ends_at === null || left === null) {
      return [];
    }
    const when = clock(session.lease_ends_at, now);
    const text = lease.can_be_kept
      ? trans.__('%1 is idle and will be released at %2, in %3.', title(session), when, duration(left, trans))
      : trans.__(
          '%1 reaches its longest allowed life at %2, in %3. Save your work.',
          title(session),
          when,
          duration(left, trans)
        );
    const actions: IAction[] = lease.can_be_kept
      ? [{ name: 'keep', label: trans.__('Keep'), caption: trans.__('Keep this session: its idle time starts anew') }]
      : [];
    // Rounded, so that a clock that is read twice makes no second notification.
    const key = `lease:${session.workload_id}:${Math.round(Date.parse(session.lease_ends_at) / 10_000)}`;
    return [{ key, kind: 'warning', text, session, actions, isPassing: false }];
  }

  private _walltimeEnd(session: ISession, now: Date): INotice[] {
    const trans = this._trans;
    const left = secondsUntil(session.walltime_ends_at, now);
    if (session.walltime_ends_at === null || left === null) {
      return [];
    }
    const isNear = left < WALLTIME_WARN_S && session.elapsed_s > 2 * WALLTIME_WARN_S;
    if (!isNear && !this._walltimeWarned.has(session.workload_id)) {
      return [];
    }
    const text = trans.__(
      "%1: its machine's time ends at %2, in %3. Save your work.",
      title(session),
      clock(session.walltime_ends_at, now),
      duration(left, trans)
    );
    const actions: IAction[] = session.can_extend
      ? [
          {
            name: 'extend',
            label: trans.__('Extend…'),
            caption: trans.__('Choose how much longer, up to %1', duration(session.most_extension_s, trans))
          }
        ]
      : [];
    const key = `walltime:${session.workload_id}:${this._end(session.workload_id, session.walltime_ends_at)}`;
    return [{ key, kind: 'warning', text, session, actions, isPassing: false }];
  }

  private _lost(session: ISession): INotice[] {
    const trans = this._trans;
    const seen = this._seen.get(session.workload_id);
    const isNews = seen && ((session.memory_lost && !seen.memoryLost) || session.recoveries > seen.recoveries);
    if (!isNews || session.state === 'ended') {
      return [];
    }
    // JupyterLab cuts a notification after 140 characters: what matters most comes first.
    const text = trans.__('%1: started afresh, its variables are gone. %2', title(session), seen.cause).trim();
    const actions = [this._show()];
    const key = `lost:${session.workload_id}:${session.recoveries}`;
    return [{ key, kind: 'warning', text, session, actions, isPassing: false }];
  }

  private _ended(session: ISession): INotice[] {
    const isExpected = session.reason === null || EXPECTED_ENDS.has(session.reason.code);
    if (
      session.start ||
      session.state !== 'ended' ||
      session.reason === null ||
      isExpected ||
      !this._seen.has(session.workload_id)
    ) {
      return [];
    }
    const trans = this._trans;
    const text = [`${title(session)}: ${session.reason.sentence}`, session.reason.remedy ?? ''].join(' ').trim();
    const again: IAction = {
      name: 'start-again',
      label: trans.__('Start again'),
      caption: trans.__('Start a new session for this notebook')
    };
    const log: IAction = { name: 'log', label: trans.__('Log'), caption: trans.__("Show the session's log") };
    const kind = session.phase === 'FAILED' || session.phase === 'LOST' ? 'error' : 'warning';
    const key = `ended:${session.workload_id}`;
    const actions = [...(hasNotebook(session) ? [again] : []), log, this._show()];
    return [{ key, kind, text, session, actions, isPassing: false }];
  }

  /** An end that is computed anew is the same one; a later one is announced again, though the first was closed. */
  private _end(workloadId: string, endsAt: string): number {
    const end = Date.parse(endsAt);
    const known = this._ends.get(workloadId);
    if (known !== undefined && Math.abs(known - end) < SAME_END_MS) {
      return known;
    }
    this._ends.set(workloadId, end);
    return end;
  }

  private _show(): IAction {
    const trans = this._trans;
    return { name: 'show', label: trans.__('Details'), caption: trans.__('Show this session in the panel') };
  }

  private readonly _seen = new Map<string, ISeen>();
  private readonly _walltimeWarned = new Set<string>();
  private readonly _recoveries = new Map<string, number>();
  private readonly _ends = new Map<string, number>();
  /** The kernels whose start was told. */
  private readonly _started = new Set<string>();
}

/** What was seen of a session so far. */
interface ISeen {
  wasReady: boolean;
  recoveries: number;
  memoryLost: boolean;
  /** Why its memory will be lost: the reason, or what was said first when it was no longer ready. */
  cause: string;
}

function look(session: ISession, seen: ISeen | undefined): ISeen {
  const isReady = session.state === 'ready';
  let cause = isReady && !session.memory_lost ? '' : (seen?.cause ?? '');
  if (seen?.wasReady && !isReady) {
    cause = session.reason?.sentence ?? (cause || session.sentence);
  }
  return {
    wasReady: (seen?.wasReady ?? false) || isReady,
    recoveries: seen?.recoveries ?? session.recoveries,
    memoryLost: seen?.memoryLost ?? session.memory_lost,
    cause
  };
}
