import { ISessionContext } from '@jupyterlab/apputils';
import { Signal } from '@lumino/signaling';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import { OpenKernels } from '../src/kernels';
import { ISession } from '../src/model/seam';
import { SessionsModel } from '../src/model/sessions';
import { READY, session } from './recorded';

class Model {
  session: ISession = session();
  readonly changed = new Signal<this, void>(this);
  ofKernel = (): ISession => this.session;
  ofPath = (): ISession => this.session;
  kernelSeen = (): void => undefined;
  expect = (): void => undefined;
  readSoon = (): void => undefined;
}

class Context {
  path = 'folder/analysis.ipynb';
  specsManager = { specs: null };
  readonly kernelChanged = new Signal<this, void>(this);
  readonly disposed = new Signal<this, void>(this);
  readonly session = {
    kernel: {
      id: session().kernels[0].kernel_id,
      isDisposed: false,
      connectionStatus: 'disconnected',
      reconnect: vi.fn(() => Promise.resolve())
    }
  };
}

let model: Model;
let context: Context;

beforeEach(() => {
  vi.useFakeTimers();
  model = new Model();
  context = new Context();
  new OpenKernels(model as unknown as SessionsModel, () => Promise.resolve([])).add(
    context as unknown as ISessionContext
  );
});

afterEach(() => {
  vi.useRealTimers();
});

function told(changes: Partial<ISession>): void {
  model.session = session(changes);
  model.changed.emit();
}

describe('a kernel whose connection gave up in the queue', () => {
  it('is connected again once its session is ready, once', () => {
    told({});
    vi.advanceTimersByTime(10_000);
    expect(context.session.kernel.reconnect).not.toHaveBeenCalled();
    told(READY);
    told(READY);
    vi.advanceTimersByTime(10_000);
    expect(context.session.kernel.reconnect).toHaveBeenCalledTimes(1);
  });

  it('is left alone when it came back by itself', () => {
    told(READY);
    context.session.kernel.connectionStatus = 'connected';
    vi.advanceTimersByTime(10_000);
    expect(context.session.kernel.reconnect).not.toHaveBeenCalled();
  });
});
