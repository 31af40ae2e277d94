/**
 * Numbers, times and amounts in words for a person. Pure: the time comes in as an argument.
 */

import { TranslationBundle } from '@jupyterlab/translation';

import { IBatch, IResources, ISession, IStart, IUsage, IWaiting, IWorkload } from './seam';

const MINUTE = 60;
const HOUR = 3600;
const DAY = 86_400;

/** Whether there is something to start it again for. A console has a path too, of no file: it is over with its kernel. */
export function hasNotebook(session: ISession): boolean {
  return session.kernels.some(kernel => kernel.path?.endsWith('.ipynb'));
}

/** "2 days 3 h", "1 h 20 min", "5 min", "40 s". */
export function duration(seconds: number, trans: TranslationBundle): string {
  const whole = Math.max(0, Math.round(seconds));
  if (whole >= DAY) {
    const hours = Math.floor((whole % DAY) / HOUR);
    const days = trans._n('%1 day', '%1 days', Math.floor(whole / DAY));
    return hours > 0 ? trans.__('%1 %2 h', days, hours) : days;
  }
  if (whole >= HOUR) {
    const minutes = Math.floor((whole % HOUR) / MINUTE);
    const hours = Math.floor(whole / HOUR);
    return minutes > 0 ? trans.__('%1 h %2 min', hours, minutes) : trans.__('%1 h', hours);
  }
  return whole >= MINUTE ? trans.__('%1 min', Math.floor(whole / MINUTE)) : trans.__('%1 s', whole);
}

/** From `now` until a time of the server; null when there is none. */
export function secondsUntil(time: string | null, now: Date): number | null {
  return time === null ? null : (Date.parse(time) - now.getTime()) / 1000;
}

/** The hour and minute of this person's clock, with the day when it is neither today nor near. */
export function clock(time: string, now: Date): string {
  const then = new Date(time);
  const isNear = Math.abs(then.getTime() - now.getTime()) < (DAY / 2) * 1000;
  return isNear || then.toDateString() === now.toDateString()
    ? then.toLocaleTimeString([], { hour: '2-digit', minute: '2-digit' })
    : then.toLocaleString([], { weekday: 'short', day: 'numeric', month: 'short', hour: '2-digit', minute: '2-digit' });
}

/** "512 MB", "16 GB". */
export function memory(megabytes: number, trans: TranslationBundle): string {
  return megabytes < 1000 ? trans.__('%1 MB', megabytes) : trans.__('%1 GB', Math.round(megabytes / 102.4) / 10);
}

/** "4 CPUs, 16 GB, 1 GPU". What is not limited or not there is left out. */
export function resources(granted: IResources, trans: TranslationBundle): string {
  const parts = [trans._n('%1 CPU', '%1 CPUs', granted.cpus)];
  if (granted.memory_mb > 0) {
    parts.push(memory(granted.memory_mb, trans));
  }
  if (granted.gpus > 0) {
    parts.push(trans._n('%1 GPU', '%1 GPUs', granted.gpus));
  }
  if (granted.nodes > 1) {
    parts.push(trans.__('%1 machines', granted.nodes));
  }
  return parts.join(', ');
}

/** Share of the memory limit in use, between 0 and 1; null when there is no limit. */
export function memoryShare(usage: IUsage): number | null {
  const limit = usage.memory_limit_mb;
  return limit === null || limit <= 0 || usage.memory_mb === null ? null : Math.min(1, usage.memory_mb / limit);
}

/** What a workload is called: its notebook, its command, or its kernel. */
export function title(workload: ISession | IBatch): string {
  if (workload.kind === 'BATCH') {
    return workload.command;
  }
  const kernel = workload.kernels.at(0);
  const name = kernel?.path?.split('/').at(-1);
  return name || kernel?.kernel_name || workload.workload_id.slice(0, 8);
}

export function stateWord(workload: IWorkload & { start?: IStart }, trans: TranslationBundle): string {
  if (workload.start) {
    return workload.start.state === 'refused' ? trans.__('Refused') : trans.__('Checking');
  }
  switch (workload.state) {
    case 'starting':
      return trans.__('Starting');
    case 'ready':
      return trans.__('Ready');
    case 'reconnecting':
      return trans.__('Reconnecting');
    case 'ending':
      return trans.__('Ending');
    case 'ended':
      return hasFailed(workload) ? trans.__('Failed') : trans.__('Ended');
  }
}

/** It ended, and nobody wished it. */
export function hasFailed(workload: IWorkload): boolean {
  return workload.phase === 'FAILED' || workload.phase === 'LOST';
}

/** What the badge says: the missing condition with its numbers, the reason of an end, or that it is ready. */
export function badgeText(session: ISession, now: Date, trans: TranslationBundle): string {
  switch (session.state) {
    case 'ended':
      return session.reason?.sentence ?? session.sentence;
    case 'ready':
      return trans.__('Ready: %1', session.profile_display_name);
    case 'starting':
      // While it comes back, the sentence says what it was lost for.
      return (
        (session.missing === 'allocation_granted' &&
          session.recoveries === 0 &&
          queueText(session.waiting, now, trans)) ||
        session.sentence
      );
    default:
      return session.sentence;
  }
}

/** Why it waits in a queue, and until when; empty when no more is known than that it waits. */
function queueText(waiting: IWaiting | null, now: Date, trans: TranslationBundle): string {
  if (waiting?.estimated_start) {
    return trans.__('queued: %1, estimated %2', waiting.sentence, clock(waiting.estimated_start, now));
  }
  return waiting?.position ? trans.__('queued: %1, place %2', waiting.sentence, waiting.position) : '';
}
