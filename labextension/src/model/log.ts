/**
 * A log that is followed: its newest lines, and how it stands with the connection. No DOM, and no word for a person.
 *
 * A stream that breaks is gone on with behind the last line that came, so none is lost and none comes twice. While
 * nobody sees the log there is no stream. A page may hold a few streams only: a browser keeps few connections to one
 * server, and the notebook needs them too.
 */

import { IDisposable } from '@lumino/disposable';
import { ISignal, Signal } from '@lumino/signaling';

import { ILogEvent } from './seam';

/** So many lines are kept; the oldest go. */
export const MOST_LINES = 2000;
export const RETRY_MS = 5000;
export const RETRY_MAX_MS = 60_000;
/** Logs that one page follows at once. */
export const MOST_STREAMS = 3;

/**
 * `connecting`, `following`; `paused`: by the person; `unseen`: nobody looks; `crowded`: too many are followed;
 * `interrupted`: it is tried again by itself; `refused`: the server said no; `ended`: nothing more will come.
 */
export type LogState =
  'connecting' | 'following' | 'paused' | 'unseen' | 'crowded' | 'interrupted' | 'refused' | 'ended';

export interface ILogSource {
  follow(rank: number | null, lines: number, after: string | null, signal: AbortSignal): AsyncIterable<ILogEvent[]>;
}

export class LogFollower implements IDisposable {
  constructor(private readonly _source: ILogSource) {}

  /** Lines were added; null: all that was there is gone. */
  get added(): ISignal<this, string[] | null> {
    return this._added;
  }

  get stateChanged(): ISignal<this, void> {
    return this._stateChanged;
  }

  get state(): LogState {
    return this._state;
  }

  /** Why it is over, or why it could not be read. */
  get told(): string {
    return this._told;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  get isPaused(): boolean {
    return this._isPaused;
  }

  /** Whether somebody sees it. */
  see(isSeen: boolean): void {
    this._isSeen = isSeen;
    this._settle();
  }

  /** A person wants it to stand still, or to go on. */
  pause(isPaused: boolean): void {
    this._isPaused = isPaused;
    if (!isPaused && (this._state === 'refused' || this._state === 'interrupted')) {
      this._set('connecting');
    }
    this._settle();
  }

  /** Another worker's log, from its last lines on. */
  choose(rank: number | null): void {
    this._end();
    this._rank = rank;
    this._after = null;
    this._added.emit(null);
    this._set('connecting');
    this._settle();
  }

  dispose(): void {
    this._isDisposed = true;
    this._end();
    Signal.clearData(this);
  }

  /** A stream runs while it is wanted, and only then. */
  private _settle(): void {
    if (this._isDisposed || this._state === 'ended' || this._state === 'refused') {
      return;
    }
    if (this._isPaused || !this._isSeen) {
      this._end();
      this._set(this._isPaused ? 'paused' : 'unseen');
    } else if (this._stream === null && streams.size >= MOST_STREAMS) {
      this._set('crowded');
      clearTimeout(this._timer);
      this._timer = setTimeout(() => {
        this._settle();
      }, RETRY_MS);
    } else if (this._stream === null) {
      clearTimeout(this._timer);
      void this._run();
    }
  }

  private async _run(): Promise<void> {
    const stream = new AbortController();
    this._stream = stream;
    streams.add(stream);
    this._set('connecting');
    let why: unknown = null;
    try {
      for await (const events of this._source.follow(this._rank, MOST_LINES, this._after, stream.signal)) {
        if (stream.signal.aborted) {
          break;
        }
        this._take(events);
      }
    } catch (error) {
      why = error;
    }
    streams.delete(stream);
    if (this._stream === stream) {
      this._stream = null;
      this._broke(why);
    }
  }

  private _take(events: ILogEvent[]): void {
    const lines: string[] = [];
    let end: string | null = null;
    for (const event of events) {
      if ('end' in event) {
        end = event.end;
      } else {
        this._after = event.id;
        lines.push(event.line);
      }
    }
    this._failures = 0;
    this._set('following');
    if (lines.length > 0) {
      this._added.emit(lines.slice(-MOST_LINES));
    }
    if (end !== null) {
      this._told = end;
      this._set('ended');
    }
  }

  private _broke(why: unknown): void {
    if (this._state === 'ended') {
      return;
    }
    const status = statusOf(why);
    this._told = status !== null && why instanceof Error ? why.message : ''; // else it is no sentence for a person
    if (status !== null && isFinal(status)) {
      this._set('refused');
      return;
    }
    const delay = Math.min(RETRY_MAX_MS, RETRY_MS * 2 ** this._failures);
    this._failures += 1;
    this._set('interrupted');
    this._timer = setTimeout(() => {
      this._settle();
    }, delay);
  }

  private _end(): void {
    clearTimeout(this._timer);
    if (this._stream !== null) {
      streams.delete(this._stream);
      this._stream.abort();
      this._stream = null;
    }
  }

  private _set(state: LogState): void {
    if (state !== this._state) {
      this._state = state;
      this._stateChanged.emit();
    }
  }

  private readonly _added = new Signal<this, string[] | null>(this);
  private readonly _stateChanged = new Signal<this, void>(this);
  private _state: LogState = 'unseen';
  private _told = '';
  private _rank: number | null = null;
  private _after: string | null = null;
  private _stream: AbortController | null = null;
  private _failures = 0;
  private _timer: ReturnType<typeof setTimeout> | undefined;
  private _isSeen = false;
  private _isPaused = false;
  private _isDisposed = false;
}

/** Those of this page. */
const streams = new Set<AbortController>();

/** What the server answered; null when it did not. */
function statusOf(error: unknown): number | null {
  const has = typeof error === 'object' && error !== null && 'status' in error && typeof error.status === 'number';
  return has ? (error.status as number) : null;
}

/** What asking again does not change: a wrong question, or something that is not there. Too many may become fewer. */
function isFinal(status: number): boolean {
  return status >= 400 && status < 500 && status !== 429;
}
