import { ISessionContext } from '@jupyterlab/apputils';
import { Session } from '@jupyterlab/services';
import { Signal } from '@lumino/signaling';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import { OpenKernels } from '../src/kernels';
import { ISession } from '../src/model/seam';
import { SessionsModel } from '../src/model/sessions';
import { ENDED, READY, session } from './recorded';

const PATH = 'folder/analysis.ipynb';
const [OLD, NEW, OTHER] = ['old', 'new', 'other'];

class Model {
  sessions: ISession[] = [];
  expected: string[] = [];
  readonly changed = new Signal<this, void>(this);
  ofKernel = (id: string): ISession | undefined => this.sessions.find(each => each.kernels[0].kernel_id === id);
  ofPath = (): ISession => this.sessions[0];
  kernelSeen = (): void => undefined;
  expect = (id: string): unknown => this.expected.push(id);
  readSoon = (): void => undefined;

  tell(...sessions: ISession[]): Promise<unknown> {
    this.sessions = sessions;
    this.changed.emit();
    return vi.advanceTimersByTimeAsync(0);
  }
}

/** The Jupyter server: which sessions it has, and which kernel each leads to. */
class Server {
  sessions = new Map<string, string>();

  list = (): Promise<Session.IModel[]> =>
    Promise.resolve(
      [...this.sessions].map(([id, kernel]) => ({ id, path: PATH, kernel: { id: kernel, name: '' } }))
    ) as unknown as Promise<Session.IModel[]>;
}

/** A notebook's session context, as JupyterLab has it. */
class Context {
  constructor(private readonly _server: Server) {}
  path = PATH;
  specsManager = { specs: null };
  asked = 0;
  readonly kernelChanged = new Signal<this, void>(this);
  readonly disposed = new Signal<this, void>(this);
  session: { id: string; kernel: { id: string } | null; dispose: () => void } | null = null;

  hold(id: string, kernel: string): Promise<unknown> {
    const dispose = (): void => {
      this.session = null;
    };
    this.session = { id, kernel: { id: kernel }, dispose };
    this.kernelChanged.emit();
    return vi.advanceTimersByTimeAsync(0);
  }

  async changeKernel({ id }: { id: string }): Promise<void> {
    this.asked += 1;
    if (this.session !== null && !this._server.sessions.has(this.session.id)) {
      throw new Error('Session not found');
    }
    const sessionId = this.session?.id ?? 'fresh';
    this._server.sessions.set(sessionId, id);
    await this.hold(sessionId, id);
  }
}

function of(kernel: string, changes: Partial<ISession>): ISession {
  return session({
    ...changes,
    workload_id: kernel,
    kernels: session().kernels.map(each => ({ ...each, kernel_id: kernel }))
  });
}

let model: Model;
let server: Server;
let context: Context;
let kernels: OpenKernels;

beforeEach(async () => {
  vi.useFakeTimers();
  vi.spyOn(console, 'warn').mockImplementation(() => undefined);
  model = new Model();
  server = new Server();
  context = new Context(server);
  kernels = new OpenKernels(model as unknown as SessionsModel, server.list);
  server.sessions.set('first', OLD);
  await context.hold('first', OLD);
  kernels.add(context as unknown as ISessionContext);
  await model.tell(of(OLD, ENDED));
});

afterEach(() => {
  vi.restoreAllMocks();
  vi.useRealTimers();
});

function lead(): Promise<unknown> {
  kernels.lead(PATH, { id: NEW, name: 'python3' });
  return vi.advanceTimersByTimeAsync(0);
}

function shown(): string | undefined {
  return kernels.session(context as unknown as ISessionContext)?.workload_id;
}

describe('a session that was started again', () => {
  it('is what the badge tells from the first snapshot on, before the notebook is connected to it', async () => {
    context.changeKernel = () => new Promise(() => undefined);
    await lead();
    expect(shown()).toBe(OLD);
    expect(model.expected).toContain(NEW);
    await model.tell(of(OLD, ENDED), of(NEW, {}));
    expect(shown()).toBe(NEW);
  });

  it("gets the notebook's kernel where Jupyter's session is the same", async () => {
    server.sessions.set('first', NEW);
    await lead();
    expect(context.session?.kernel?.id).toBe(NEW);
  });

  it("does not ask for a session that is gone on the server, as JupyterLab's older list would have it", async () => {
    server.sessions.clear(); // the dead kernel took it along, and the page has not heard of that
    server.sessions.set('second', NEW);
    await lead();
    expect(context.session?.kernel?.id).toBe(NEW);
    expect(context.asked).toBe(1);
  });

  it('is found again after an answer from before the start has led the notebook back', async () => {
    server.sessions.set('first', NEW);
    await lead();
    await context.hold('first', OLD);
    expect(context.session?.kernel?.id).toBe(NEW);
    await context.hold('first', OLD);
    await model.tell(of(OLD, ENDED), of(NEW, {}));
    expect(context.session?.kernel?.id).toBe(NEW);
    expect(shown()).toBe(NEW);
  });

  it('is tried again when the server did not answer', async () => {
    const list = server.list;
    let failures = 2;
    server.list = () => (failures-- > 0 ? Promise.reject(new Error('busy')) : list());
    kernels = new OpenKernels(model as unknown as SessionsModel, () => server.list());
    kernels.add(context as unknown as ISessionContext);
    await lead();
    expect(context.session?.kernel?.id).toBe(OLD);
    await vi.advanceTimersByTimeAsync(10_000);
    expect(context.session?.kernel?.id).toBe(NEW);
  });

  it('is left alone once it is ready, or once a person chose another kernel', async () => {
    server.sessions.set('first', NEW);
    await lead();
    await model.tell(of(OLD, ENDED), of(NEW, READY));
    await context.hold('first', OTHER);
    await model.tell(of(OLD, ENDED), of(NEW, READY));
    expect(context.session?.kernel?.id).toBe(OTHER);
    expect(shown()).toBe(undefined);
  });

  it('that fails leaves the notebook as it is', async () => {
    context.changeKernel = () => Promise.reject(new Error('it ended already'));
    await lead();
    await model.tell(of(OLD, ENDED), of(NEW, ENDED));
    const asked = vi.spyOn(context, 'changeKernel');
    await vi.advanceTimersByTimeAsync(60_000);
    expect(asked).not.toHaveBeenCalled();
  });
});
