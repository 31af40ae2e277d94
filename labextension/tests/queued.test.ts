import { ISessionContext } from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { Signal } from '@lumino/signaling';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import { OpenKernels } from '../src/kernels';
import { QueuedCells } from '../src/queued';

const lab = vi.hoisted<{ executionScheduled: unknown; ran: string[][] }>(() => ({
  executionScheduled: undefined,
  ran: []
}));

vi.mock('@jupyterlab/notebook', () => ({
  NotebookActions: {
    get executionScheduled(): unknown {
      return lab.executionScheduled;
    },
    runCells: (_: unknown, cells: { model: { id: string } }[]): Promise<boolean> => {
      lab.ran.push(cells.map(cell => cell.model.id));
      return Promise.resolve(true);
    }
  }
}));

const CELLS = ['one', 'two', 'three'].map(id => ({ model: { id } }));

let kept: Map<string, string>;
let state: string;

/** A page with one notebook, over what the tab's storage holds; `scheduled` and `heard` are what happens in it. */
function page(): { scheduled: (id: string) => void; heard: (type: string, from: string) => void } {
  const scheduled = (lab.executionScheduled = new Signal<object, unknown>({}));
  const added = new Signal<object, unknown>({});
  const kernel = { id: 'kernel', clientId: 'this page' };
  const context = { session: { kernel }, ready: Promise.resolve() };
  const iopubMessage = new Signal<ISessionContext, unknown>(context as unknown as ISessionContext);
  const content = { widgets: CELLS };
  const panel = { content, context: { ready: Promise.resolve() }, sessionContext: { ...context, iopubMessage } };
  const notebooks = { find: (is: (each: unknown) => boolean) => (is(panel) ? panel : undefined), widgetAdded: added };
  const kernels = { session: () => ({ state }) };
  new QueuedCells(kernels as unknown as OpenKernels, notebooks as unknown as INotebookTracker);
  added.emit(panel);
  return {
    scheduled: id => {
      scheduled.emit({ notebook: content, cell: { model: { id } } });
    },
    heard: (msg_type, session) => {
      iopubMessage.emit({ parent_header: { msg_type, session } });
    }
  };
}

async function reload(): Promise<ReturnType<typeof page>> {
  const next = page();
  await new Promise(resolve => setTimeout(resolve));
  return next;
}

beforeEach(() => {
  kept = new Map();
  lab.ran.length = 0;
  state = 'starting';
  const storage = {
    getItem: (key: string) => kept.get(key) ?? null,
    setItem: (key: string, value: string) => kept.set(key, value),
    removeItem: (key: string) => kept.delete(key)
  };
  // The names of what is kept are the storage's own keys, as a browser has it.
  const names = { ownKeys: () => [...kept.keys()] };
  const named = { getOwnPropertyDescriptor: () => ({ enumerable: true, configurable: true }) };
  vi.stubGlobal('sessionStorage', new Proxy(storage, { ...names, ...named }));
});

afterEach(() => {
  vi.unstubAllGlobals();
});

describe('a cell that was run while its kernel waited', () => {
  it('is run by the page that comes after a reload, once', async () => {
    const first = page();
    first.scheduled('one');
    first.scheduled('three');
    await reload();
    expect(lab.ran).toEqual([['one', 'three']]);
    await reload();
    expect(lab.ran).toHaveLength(1);
  });

  it('is forgotten with the first sign that the kernel runs what this page sent', async () => {
    const first = page();
    first.scheduled('one');
    first.heard('kernel_info_request', 'this page');
    first.heard('execute_request', 'another page');
    expect(kept.size).toBe(1);
    first.heard('execute_request', 'this page');
    expect(kept.size).toBe(0);
    await reload();
    expect(lab.ran).toEqual([]);
  });

  it('is not kept once the kernel is there', () => {
    state = 'ready';
    page().scheduled('one');
    expect(kept.size).toBe(0);
  });
});
