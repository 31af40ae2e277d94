/**
 * What the server's `openai4s/` endpoints answer, as types. Times are ISO 8601 in UTC, durations in seconds.
 * Values only: nothing here asks, and nothing here knows where sessions run.
 */

export type State = 'starting' | 'ready' | 'reconnecting' | 'ending' | 'ended';

export type ConditionName = 'allocation_granted' | 'worker_registered' | 'workspace_ready' | 'kernel_ready';

export interface ICondition {
  name: ConditionName;
  met: boolean;
  have: number;
  want: number;
  sentence: string;
}

export interface ILease {
  idle_ends_at: string | null;
  absolute_ends_at: string | null;
  warned: boolean;
  can_be_kept: boolean;
}

export interface IKernel {
  kernel_id: string;
  kernel_name: string;
  path: string | null;
  lease: ILease | null;
}

export interface IReason {
  code: string;
  sentence: string;
  remedy: string | null;
  detail: string;
  actor: string;
}

export interface IWaiting {
  sentence: string;
  estimated_start: string | null;
  estimate_as_of: string | null;
  position: number | null;
}

export interface IUsage {
  cpu_percent: number | null;
  memory_mb: number | null;
  memory_limit_mb: number | null;
  gpus: { index: number; percent: number | null; memory_mb: number | null }[];
  at: string;
}

/** What an allocation holds; 0 megabytes = no limit stated. */
export interface IResources {
  cpus: number;
  memory_mb: number;
  gpus: number;
  nodes: number;
}

/** What sessions and commands have in common. */
export interface IWorkload {
  workload_id: string;
  kind: 'SESSION' | 'BATCH';
  profile: string;
  profile_display_name: string;
  phase: string;
  state: State;
  sentence: string;
  waiting: IWaiting | null;
  created_at: string;
  granted_at: string | null;
  ended_at: string | null;
  elapsed_s: number;
  walltime_ends_at: string | null;
  can_extend: boolean;
  /** By how many seconds it may be extended now. */
  most_extension_s: number;
  hosts: string[];
  resources: IResources | null;
  usage: IUsage | null;
  reason: IReason | null;
  detail: string;
}

export interface ISession extends IWorkload {
  kind: 'SESSION';
  kernels: IKernel[];
  conditions: ICondition[];
  met: number;
  missing: ConditionName | null;
  lease_ends_at: string | null;
  memory_lost: boolean;
  recoveries: number;
  /** Set while it is a start that is no session yet, or was refused: then nothing of it is kept on the server. */
  start?: IStart;
}

/** A kernel that is to be in a session, before there is one. */
export interface IStart {
  kernel_id: string;
  kernel_name: string;
  path: string | null;
  profile: string;
  profile_display_name: string;
  state: 'checking' | 'refused';
  sentence: string;
  reason: IReason | null;
  asked_at: string;
  elapsed_s: number;
}

export interface IBatch extends IWorkload {
  kind: 'BATCH';
  command: string;
  exit_code: number | null;
}

export interface ISnapshot {
  sessions: ISession[];
  starts: IStart[];
  batches: IBatch[];
  as_of: string;
  offline: string | null;
}

/** The quantities a person may choose for one start. */
export interface IAmounts {
  walltime_s: number;
  gpus: number;
  memory_mb: number;
  cpus: number;
}

export interface IProfile {
  name: string;
  display_name: string;
  is_default: boolean;
  resources: IAmounts;
  limits: IAmounts;
  kernelspecs: string[];
}

export interface ILaunch {
  kernel_id: string;
  profile: string;
  kernel_name: string;
  resources: IAmounts;
}

/** One event of a log that is followed: a line with the id to go on from, or why there will be no more. */
export type ILogEvent = { id: string; line: string } | { end: string };

/** One event of the server's stream, as far as it is ours. */
export interface IServerEvent {
  schema_id: string;
  workload_id?: string;
  kernel_id?: string;
  phase?: string;
  met?: number;
  missing?: ConditionName | null;
  sentence?: string;
  reason?: string | null;
  state?: string;
  ends_at?: string | null;
}
