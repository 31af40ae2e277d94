/**
 * One session at several moments, as the server's endpoints tell it (rest-api.yml).
 */

import { TranslationBundle } from '@jupyterlab/translation';

import { ISession, ISnapshot } from '../src/model/seam';

export const NOW = new Date('2026-11-29T21:00:00.000Z');

export function session(changes: Partial<ISession> = {}): ISession {
  return {
    workload_id: '4a7c1f6e-59c2-4d37-b1bb-7c9d27c0a001',
    kind: 'SESSION',
    kernels: [
      {
        kernel_id: '0c6bd1c4-0d5f-4a8e-9f5b-d1f1a2b30001',
        kernel_name: 'python3-default-session',
        path: 'folder/analysis.ipynb',
        lease: {
          idle_ends_at: '2026-11-29T23:00:00.000Z',
          absolute_ends_at: '2026-12-01T21:00:00.000Z',
          warned: false,
          can_be_kept: true
        }
      }
    ],
    profile: 'default',
    profile_display_name: 'local session',
    phase: 'PENDING',
    state: 'starting',
    conditions: [
      { name: 'allocation_granted', met: false, have: 0, want: 1, sentence: 'waiting for the allocation' },
      { name: 'worker_registered', met: false, have: 0, want: 1, sentence: 'waiting for the worker' },
      { name: 'workspace_ready', met: false, have: 0, want: 1, sentence: 'waiting for the workspace' },
      { name: 'kernel_ready', met: false, have: 0, want: 1, sentence: 'waiting for the kernel to answer' }
    ],
    met: 0,
    missing: 'allocation_granted',
    sentence: '0 of 4 conditions: waiting for the allocation',
    waiting: null,
    created_at: '2026-11-29T20:59:30.000Z',
    granted_at: null,
    ended_at: null,
    elapsed_s: 30,
    walltime_ends_at: null,
    can_extend: false,
    most_extension_s: 0,
    lease_ends_at: '2026-11-29T23:00:00.000Z',
    hosts: [],
    resources: { cpus: 1, memory_mb: 0, gpus: 0, nodes: 1 },
    usage: null,
    reason: null,
    memory_lost: false,
    recoveries: 0,
    detail: '',
    ...changes
  };
}

export const READY: Partial<ISession> = {
  phase: 'ACTIVE',
  state: 'ready',
  met: 4,
  missing: null,
  sentence: '4 of 4 conditions: the kernel is ready'
};

export const ENDED: Partial<ISession> = {
  phase: 'FAILED',
  state: 'ended',
  ended_at: '2026-11-29T21:00:00.000Z',
  lease_ends_at: null,
  reason: {
    code: 'OUT_OF_MEMORY',
    sentence: 'The session used more memory than its profile allows and was ended.',
    remedy: 'Choose a profile with more memory.',
    detail: '',
    actor: ''
  }
};

export function snapshot(...sessions: ISession[]): ISnapshot {
  return { sessions, starts: [], batches: [], as_of: NOW.toISOString(), offline: null };
}

/** English, with the numbers put in, as JupyterLab does it. */
export const trans = {
  __: (text: string, ...values: unknown[]) => filled(text, values),
  _n: (one: string, many: string, count: number, ...values: unknown[]) =>
    filled(count === 1 ? one : many, [count, ...values])
} as unknown as TranslationBundle;

function filled(text: string, values: unknown[]): string {
  return text.replace(/%(\d)/g, (_, index: string) => String(values[Number(index) - 1]));
}
