/**
 * Every session and command that this page knows of: the newest snapshot of the server, and when to read the next.
 *
 * The server's stream of events loses some across reconnects. So an event only says "read again", and a slow poll runs
 * while something is alive and somebody looks. No DOM here, and no word for a person.
 */

import { IDisposable } from '@lumino/disposable';
import { ISignal, Signal } from '@lumino/signaling';

import { IBatch, IServerEvent, ISession, ISnapshot } from './seam';
import { asSession } from './starts';

/** At most one read in this time, however many events arrive. */
export const COALESCE_MS = 1000;
/** Between two reads while something is alive. */
export const POLL_MS = 10_000;
/** So often a kernel that no snapshot knows is looked for: its session may be about to be opened. */
export const LOOKS = 3;
/** Between two tries while the server does not answer, at most. */
export const RETRY_MAX_MS = 60_000;
/** So many reads may miss a kernel that is expected before it is given up. */
const EXPECTED_READS = 6;

const OURS = 'https://events.openai4s.dev/';
const CHANGES = `${OURS}session/v1`;

/** Whether the newest read worked: `absent` means that this server has no such endpoints. */
export type Reach = 'unread' | 'reached' | 'unreachable' | 'absent';

export interface ISource {
  snapshot(): Promise<ISnapshot>;
}

/** Whether somebody looks at this page. */
export interface IAttention {
  readonly isLookedAt: boolean;
  readonly changed: ISignal<unknown, void>;
}

export class SessionsModel implements IDisposable {
  constructor(
    private readonly _source: ISource,
    private readonly _attention: IAttention
  ) {
    _attention.changed.connect(this._onAttention, this);
  }

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Events of the server's stream, passed on as they are. */
  get heard(): ISignal<this, IServerEvent> {
    return this._heard;
  }

  /** Starts that are no sessions yet are among them. */
  get sessions(): readonly ISession[] {
    return this._sessions;
  }

  get batches(): readonly IBatch[] {
    return this._snapshot?.batches ?? [];
  }

  get snapshot(): ISnapshot | null {
    return this._snapshot;
  }

  get reach(): Reach {
    return this._reach;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  /** Whether anything runs or waits. Nothing is read again by itself while this is false. */
  get isAlive(): boolean {
    return [...this.sessions, ...this.batches].some(each => each.state !== 'ended');
  }

  find(workloadId: string): ISession | IBatch | undefined {
    return [...this.sessions, ...this.batches].find(each => each.workload_id === workloadId);
  }

  /** The session that holds this kernel; of several the newest. */
  ofKernel(kernelId: string): ISession | undefined {
    return newest(this.sessions.filter(each => each.kernels.some(kernel => kernel.kernel_id === kernelId)));
  }

  /** The newest session of a notebook, alive or not. */
  ofPath(path: string): ISession | undefined {
    return newest(this.sessions.filter(each => each.kernels.some(kernel => kernel.path === path)));
  }

  /** An event of the server's stream; those of others are passed over. */
  hear(event: { schema_id: string }): void {
    if (event.schema_id.startsWith(OURS)) {
      this._apply(event);
      this._heard.emit(event);
      this.readSoon();
    }
  }

  /** A kernel is there that no snapshot knows: read, a few times for each, as it may be ours. */
  kernelSeen(kernelId: string): void {
    if (!this._kernelsSeen.has(kernelId) && this._reach !== 'absent') {
      this._kernelsSeen.add(kernelId);
      this._expected.set(kernelId, LOOKS);
      this.readSoon();
    }
  }

  /** A session of this kernel is on its way: read until it is there, whether events tell of it or not. */
  expect(kernelId: string): void {
    if (this._reach !== 'absent' && this.ofKernel(kernelId) === undefined && !this._expected.has(kernelId)) {
      this._expected.set(kernelId, EXPECTED_READS);
      this.readSoon();
    }
  }

  /** Something was lost on the way from the server. Where nothing is known, nothing can be stale. */
  mayBeStale(): void {
    if (this.sessions.length + this.batches.length > 0) {
      this.readSoon();
    }
  }

  /** Read as soon as the last read is a second old. Many calls make one read. */
  readSoon(): void {
    const waits = Math.max(0, this._lastRead + COALESCE_MS - Date.now());
    if (!this._isReading) {
      this._schedule(waits);
    } else {
      this._readAgain = true;
    }
  }

  dispose(): void {
    this._isDisposed = true;
    clearTimeout(this._timer);
    Signal.clearData(this);
  }

  /** While a session starts, what the event says is shown at once; the read that follows has the last word. */
  private _apply(event: IServerEvent): void {
    const session = this.sessions.find(each => each.workload_id === event.workload_id);
    const { met, missing, phase, sentence } = event;
    if (event.schema_id !== CHANGES || session?.state !== 'starting' || event.reason) {
      return;
    }
    if (met === undefined || missing === undefined || phase === undefined || sentence === undefined) {
      return;
    }
    Object.assign(session, { met, missing, phase, sentence, state: missing === null ? 'ready' : 'starting' });
    session.conditions.forEach((condition, index) => (condition.met = index < met));
    this._changed.emit();
  }

  private _onAttention(): void {
    if (this._attention.isLookedAt && this._isOverdue) {
      this.readSoon();
    } else if (this._attention.isLookedAt && Date.now() - this._lastRead > POLL_MS) {
      this.mayBeStale(); // what ended before may have been started again from elsewhere
    }
  }

  private _schedule(delayMs: number): void {
    clearTimeout(this._timer);
    this._timer = setTimeout(() => void this._read(), delayMs);
  }

  private async _read(): Promise<void> {
    if (this._isDisposed) {
      return;
    }
    this._isReading = true;
    this._lastRead = Date.now();
    try {
      const snapshot = await this._source.snapshot();
      this._snapshot = snapshot;
      this._sessions = [...snapshot.starts.map(asSession), ...snapshot.sessions];
      this._reach = 'reached';
      this._failures = 0;
      this._countExpected();
    } catch (error) {
      this._reach = isAbsent(error) ? 'absent' : 'unreachable';
      this._failures += 1;
    }
    this._isReading = false;
    // A disposal may have come while the server was asked.
    if (!(this._isDisposed as boolean)) {
      this._changed.emit();
      this._planNext();
    }
  }

  private _planNext(): void {
    this._isOverdue = false;
    if (this._readAgain) {
      this._readAgain = false;
      this.readSoon();
    } else if (this._reach === 'unreachable') {
      this._later(Math.min(RETRY_MAX_MS, POLL_MS * 2 ** (this._failures - 1)));
    } else if (this._reach === 'reached' && (this.isAlive || this._expected.size > 0)) {
      this._later(POLL_MS);
    }
  }

  private _countExpected(): void {
    for (const [kernelId, left] of this._expected) {
      if (left <= 1 || this.ofKernel(kernelId) !== undefined) {
        this._expected.delete(kernelId);
      } else {
        this._expected.set(kernelId, left - 1);
      }
    }
  }

  /** Read after a while, or when somebody looks again. */
  private _later(delayMs: number): void {
    clearTimeout(this._timer);
    this._timer = setTimeout(() => {
      if (this._attention.isLookedAt) {
        void this._read();
      } else {
        this._isOverdue = true;
      }
    }, delayMs);
  }

  private readonly _changed = new Signal<this, void>(this);
  private readonly _heard = new Signal<this, IServerEvent>(this);
  private readonly _kernelsSeen = new Set<string>();
  private readonly _expected = new Map<string, number>(); // reads that are left, by kernel
  private _sessions: ISession[] = [];
  private _snapshot: ISnapshot | null = null;
  private _reach: Reach = 'unread';
  private _failures = 0;
  private _lastRead = 0;
  private _isReading = false;
  private _readAgain = false;
  private _isOverdue = false;
  private _isDisposed = false;
  private _timer: ReturnType<typeof setTimeout> | undefined;
}

function newest(sessions: ISession[]): ISession | undefined {
  return sessions.reduce<ISession | undefined>(
    (best, each) => (best === undefined || each.created_at >= best.created_at ? each : best),
    undefined
  );
}

function isAbsent(error: unknown): boolean {
  return typeof error === 'object' && error !== null && 'status' in error && error.status === 404;
}
