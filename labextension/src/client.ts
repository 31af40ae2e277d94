/**
 * The only place that talks to the server's `openai4s/` endpoints. It asks once; when to ask is the model's affair.
 */

import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

import { ILaunch, ILog, IProfile, ISnapshot } from './model/seam';

/** The server answered, and said no. `message` is its sentence for a person. */
export class Refusal extends Error {
  constructor(
    message: string,
    readonly status: number
  ) {
    super(message);
  }
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

  startAgain(workloadId: string): Promise<{ kernel_id: string; path: string | null }> {
    return this._json(`sessions/${encodeURIComponent(workloadId)}/start-again`, {});
  }

  async launch(wish: ILaunch): Promise<void> {
    await this._json('launches', wish);
  }

  log(workloadId: string, kind: 'SESSION' | 'BATCH', lines: number): Promise<ILog> {
    const room = kind === 'SESSION' ? 'sessions' : 'batches';
    return this._json<ILog>(`${room}/${encodeURIComponent(workloadId)}/log?lines=${lines}&follow=0`);
  }

  private async _json<T>(path: string, body?: object): Promise<T> {
    const url = URLExt.join(this._settings.baseUrl, 'openai4s/') + path;
    const init: RequestInit = body === undefined ? {} : { method: 'POST', body: JSON.stringify(body) };
    const response = await ServerConnection.makeRequest(url, init, this._settings);
    const text = await response.text();
    if (!response.ok) {
      throw new Refusal(messageOf(text) || `${response.status} ${response.statusText}`, response.status);
    }
    return JSON.parse(text) as T;
  }
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
