/**
 * The only place that talks to the server's `openai4s/` endpoints. It asks once; when to ask is the model's affair.
 */

import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

import { EventStream, IStreamEvent } from './model/stream';
import { ILaunch, ILogEvent, IProfile, ISnapshot } from './model/seam';

/** The server answered, and said no. `message` is its sentence for a person. */
export class Refusal extends Error {
  constructor(
    message: string,
    readonly status: number
  ) {
    super(message);
  }
}

export interface IFollow {
  /** Of which worker; null: of every one. */
  rank: number | null;
  /** How many of the last lines come first. */
  lines: number;
  /** The id of the last line that came, to go on from there. */
  after: string | null;
  signal: AbortSignal;
}

export class Client {
  constructor(private readonly _settings: ServerConnection.ISettings) {}

  snapshot(): Promise<ISnapshot> {
    return this._json<ISnapshot>('sessions');
  }

  async profiles(): Promise<IProfile[]> {
    return (await this._json<{ profiles: IProfile[] }>('profiles')).profiles;
  }

  async stop(workloadId: string, kind: 'SESSION' | 'BATCH'): Promise<void> {
    const room = kind === 'SESSION' ? 'sessions' : 'batches';
    await this._json(`${room}/${encodeURIComponent(workloadId)}/stop`, {});
  }

  async keep(workloadId: string): Promise<void> {
    await this._json(`sessions/${encodeURIComponent(workloadId)}/keep`, {});
  }

  async extend(workloadId: string, seconds: number): Promise<void> {
    await this._json(`sessions/${encodeURIComponent(workloadId)}/extend`, { seconds });
  }

  /** `makesSession`: whether Jupyter's session is made as well, where the notebook has none. */
  startAgain(workloadId: string, makesSession: boolean): Promise<{ kernel_id: string; path: string | null }> {
    return this._json(`sessions/${encodeURIComponent(workloadId)}/start-again`, {
      make_session: makesSession
    });
  }

  async launch(wish: ILaunch): Promise<void> {
    await this._json('launches', wish);
  }

  /** What a log holds and what is added to it, as it comes, until its end or until the signal. */
  async *follow(
    workloadId: string,
    kind: 'SESSION' | 'BATCH',
    { rank, lines, after, signal }: IFollow
  ): AsyncGenerator<ILogEvent[]> {
    const room = kind === 'SESSION' ? 'sessions' : 'batches';
    const query = new URLSearchParams({ follow: '1', lines: String(lines) });
    if (rank !== null) {
      query.set('rank', String(rank));
    }
    if (after !== null) {
      query.set('after', after);
    }
    const path = `${room}/${encodeURIComponent(workloadId)}/log?${query.toString()}`;
    const response = await this._ask(path, { cache: 'no-store', signal });
    yield []; // it is read; there may be nothing yet
    const reader = response.body?.getReader();
    const events = new EventStream();
    const decoder = new TextDecoder();
    try {
      for (let piece = await reader?.read(); piece && !piece.done; piece = await reader?.read()) {
        const told = events.take(decoder.decode(piece.value, { stream: true })).map(logEvent);
        if (told.length > 0) {
          yield told;
        }
      }
    } finally {
      await reader?.cancel().catch(() => undefined); // it may be over already
    }
  }

  private async _json<T>(path: string, body?: object): Promise<T> {
    const response = await this._ask(path, body === undefined ? {} : { method: 'POST', body: JSON.stringify(body) });
    return JSON.parse(await response.text()) as T;
  }

  /** An answer that is none of an error. */
  private async _ask(path: string, init: RequestInit): Promise<Response> {
    const url = URLExt.join(this._settings.baseUrl, 'openai4s/') + path;
    const response = await ServerConnection.makeRequest(url, init, this._settings);
    if (!response.ok) {
      const message = messageOf(await response.text());
      throw new Refusal(message || `${response.status} ${response.statusText}`, response.status);
    }
    return response;
  }
}

function logEvent(event: IStreamEvent): ILogEvent {
  return event.name === 'end' ? { end: event.data } : { id: event.id, line: event.data };
}

/** The sentence of an error answer; empty when it is none of ours. */
function messageOf(text: string): string {
  try {
    const body: unknown = JSON.parse(text);
    if (typeof body === 'object' && body !== null && 'message' in body && typeof body.message === 'string') {
      return body.message;
    }
  } catch {
    // A proxy's page of HTML says nothing to a person.
  }
  return '';
}
