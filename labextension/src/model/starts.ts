/**
 * A start that is no session yet, told like one: it has no condition that holds, no machine and no log.
 */

import { ICondition, ISession, IStart } from './seam';

const NAMES: ICondition['name'][] = ['allocation_granted', 'worker_registered', 'workspace_ready', 'kernel_ready'];

export function asSession(start: IStart): ISession {
  const isRefused = start.state === 'refused';
  return {
    workload_id: `start:${start.kernel_id}`,
    kind: 'SESSION',
    kernels: [{ kernel_id: start.kernel_id, kernel_name: start.kernel_name, path: start.path, lease: null }],
    profile: start.profile,
    profile_display_name: start.profile_display_name,
    phase: isRefused ? 'FAILED' : 'SUBMITTING',
    state: isRefused ? 'ended' : 'starting',
    sentence: start.sentence,
    conditions: NAMES.map(name => ({ name, met: false, have: 0, want: 1, sentence: '' })),
    met: 0,
    missing: null,
    waiting: null,
    created_at: start.asked_at,
    granted_at: null,
    ended_at: null,
    elapsed_s: start.elapsed_s,
    walltime_ends_at: null,
    can_extend: false,
    most_extension_s: 0,
    lease_ends_at: null,
    hosts: [],
    resources: null,
    usage: null,
    reason: start.reason,
    memory_lost: false,
    recoveries: 0,
    detail: '',
    start
  };
}
