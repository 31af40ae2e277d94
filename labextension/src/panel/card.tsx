/**
 * One session or command in the panel: the ladder of conditions, reason and remedy, what it has, and what can be done.
 */

import { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';

import { laterIcon, metIcon, missingIcon, stateIcon } from '../icons';
import { ActionName } from '../model/notices';
import { IBatch, ICondition, ISession, IUsage } from '../model/seam';
import {
  badgeText,
  clock,
  duration,
  hasFailed,
  hasNotebook,
  memory,
  memoryShare,
  resources,
  secondsUntil,
  stateWord,
  title
} from '../model/words';

export interface ICardProps {
  workload: ISession | IBatch;
  now: Date;
  isSelected: boolean;
  /** Its notebook has a later one that is alive. */
  isReplaced: boolean;
  trans: TranslationBundle;
  act: (name: ActionName, workload: ISession | IBatch) => void;
}

export function Card(props: ICardProps): React.JSX.Element {
  const { workload, trans, isSelected } = props;
  const failed = hasFailed(workload);
  const Icon = stateIcon(workload.state, failed);
  const heading = `openai4s-title-${workload.workload_id}`;
  return (
    <li
      className="openai4s-Card"
      aria-labelledby={heading}
      data-state={failed ? 'failed' : workload.state}
      data-workload={workload.workload_id}
      data-selected={isSelected || undefined}
    >
      <div className="openai4s-Card-head">
        <Icon.react tag="span" className="openai4s-Card-icon" aria-hidden="true" />
        <h3
          id={heading}
          title={workload.kind === 'SESSION' ? (workload.kernels.at(0)?.path ?? undefined) : workload.command}
        >
          {title(workload)}
        </h3>
        <span className="openai4s-Card-state">{stateWord(workload, trans)}</span>
      </div>
      <Told {...props} />
      {workload.kind === 'SESSION' && !workload.start && workload.state !== 'ended' && (
        <Ladder conditions={workload.conditions} trans={trans} />
      )}
      <Facts {...props} />
      {workload.usage && workload.state !== 'ended' && <Usage usage={workload.usage} trans={trans} />}
      <Buttons {...props} />
    </li>
  );
}

function Told({ workload, now, trans }: ICardProps): React.JSX.Element {
  const reason = workload.reason;
  const isSession = workload.kind === 'SESSION';
  const isLost = isSession && workload.memory_lost && workload.state === 'ready';
  const isPlain = isSession && workload.state === 'ready';
  return (
    <>
      {isLost && (
        <p className="openai4s-Card-warning">
          {trans.__('The kernel was started afresh: its variables are gone. Run your cells again from the top.')}
        </p>
      )}
      {!isPlain && (
        <p className="openai4s-Card-sentence">
          {isSession ? badgeText(workload, now, trans) : (reason?.sentence ?? workload.sentence)}
        </p>
      )}
      {workload.state === 'starting' && workload.waiting && <Waiting workload={workload} now={now} trans={trans} />}
      {reason?.remedy && !isLost && <p className="openai4s-Card-remedy">{trans.__('What to do: %1', reason.remedy)}</p>}
      {(reason?.detail || workload.detail) && (
        <details className="openai4s-Card-detail">
          <summary>{trans.__('In detail')}</summary>
          {reason && <p>{trans.__('Reason: %1', reason.code)}</p>}
          {reason?.detail && <p>{reason.detail}</p>}
          {workload.detail && <p>{workload.detail}</p>}
        </details>
      )}
    </>
  );
}

function Waiting({ workload, now, trans }: Pick<ICardProps, 'workload' | 'now' | 'trans'>): React.JSX.Element | null {
  const waiting = workload.waiting;
  const lines: string[] = [];
  if (waiting !== null && waiting.position !== null) {
    lines.push(trans.__('Place in the queue: %1.', waiting.position));
  }
  if (waiting !== null && waiting.estimated_start !== null && waiting.estimate_as_of !== null) {
    lines.push(trans.__('Estimate of %1.', clock(waiting.estimate_as_of, now)));
  }
  return lines.length > 0 ? <p className="openai4s-Card-waiting">{lines.join(' ')}</p> : null;
}

function Ladder({ conditions, trans }: { conditions: ICondition[]; trans: TranslationBundle }): React.JSX.Element {
  const next = conditions.findIndex(condition => !condition.met);
  const names: Record<ICondition['name'], string> = {
    allocation_granted: trans.__('Allocation granted'),
    worker_registered: trans.__('Worker registered'),
    workspace_ready: trans.__('Workspace ready'),
    kernel_ready: trans.__('Kernel ready')
  };
  return (
    <ol className="openai4s-Ladder" aria-label={trans.__('Conditions of readiness')}>
      {conditions.map((condition, index) => {
        const Icon = condition.met ? metIcon : index === next ? missingIcon : laterIcon;
        const progress = condition.met ? 'met' : index === next ? 'missing' : 'later';
        const words = { met: trans.__('done'), missing: trans.__('waiting'), later: trans.__('later') };
        return (
          <li key={condition.name} data-condition={condition.name} data-progress={progress} title={condition.sentence}>
            <Icon.react tag="span" className="openai4s-Ladder-icon" aria-hidden="true" />
            <span className="openai4s-Ladder-name">{names[condition.name]}</span>
            <span className="openai4s-Ladder-count">
              {condition.want > 1 ? trans.__('%1 of %2', condition.have, condition.want) : words[progress]}
            </span>
          </li>
        );
      })}
    </ol>
  );
}

function Facts({ workload, now, trans }: ICardProps): React.JSX.Element {
  const facts: [string, string][] = [[trans.__('Profile'), workload.profile_display_name]];
  if (workload.resources !== null) {
    facts.push([trans.__('Resources'), resources(workload.resources, trans)]);
  }
  if (workload.hosts.length > 0) {
    facts.push([trans._n('Machine', 'Machines', workload.hosts.length), workload.hosts.join(', ')]);
  }
  if (workload.state === 'ended') {
    if (workload.ended_at !== null) {
      facts.push([trans.__('Ended'), clock(workload.ended_at, now)]);
    }
    if (workload.kind === 'BATCH' && workload.exit_code !== null) {
      facts.push([trans.__('Exit code'), String(workload.exit_code)]);
    }
  } else {
    facts.push([trans.__('Since'), clock(workload.granted_at ?? workload.created_at, now)]);
    facts.push(...timeLeft(workload, now, trans));
  }
  return (
    <dl className="openai4s-Facts">
      {facts.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

function timeLeft(workload: ISession | IBatch, now: Date, trans: TranslationBundle): [string, string][] {
  const lines: [string, string][] = [];
  const walltime = secondsUntil(workload.walltime_ends_at, now);
  if (walltime !== null && workload.walltime_ends_at !== null) {
    const end = clock(workload.walltime_ends_at, now);
    lines.push([trans.__('Time left'), trans.__('%1 (until %2)', duration(walltime, trans), end)]);
  }
  if (workload.kind === 'SESSION' && workload.lease_ends_at !== null) {
    const lease = secondsUntil(workload.lease_ends_at, now) ?? 0;
    const end = clock(workload.lease_ends_at, now);
    const isIdle = workload.kernels.some(kernel => kernel.lease?.idle_ends_at === workload.lease_ends_at);
    const name = isIdle ? trans.__('Released if idle') : trans.__('Longest life');
    lines.push([name, trans.__('%1 (until %2)', duration(lease, trans), end)]);
  }
  return lines;
}

function Usage({ usage, trans }: { usage: IUsage; trans: TranslationBundle }): React.JSX.Element {
  const share = memoryShare(usage);
  return (
    <ul className="openai4s-Usage" aria-label={trans.__('In use now')}>
      {usage.cpu_percent !== null && (
        <Meter name={trans.__('CPU')} value={trans.__('%1 %', Math.round(usage.cpu_percent))} share={null} />
      )}
      {usage.memory_mb !== null && (
        <Meter name={trans.__('Memory')} value={memory(Math.round(usage.memory_mb), trans)} share={share} />
      )}
      {usage.gpus.map(gpu => (
        <Meter
          key={gpu.index}
          name={trans.__('GPU %1', gpu.index)}
          value={[
            gpu.percent === null ? '' : trans.__('%1 %', Math.round(gpu.percent)),
            gpu.memory_mb === null ? '' : memory(gpu.memory_mb, trans)
          ]
            .filter(Boolean)
            .join(', ')}
          share={gpu.percent === null ? null : gpu.percent / 100}
        />
      ))}
    </ul>
  );
}

function Meter({ name, value, share }: { name: string; value: string; share: number | null }): React.JSX.Element {
  return (
    <li>
      <span>{name}</span>
      <span>{value}</span>
      {share !== null && <meter min={0} max={1} high={0.9} value={share} aria-label={`${name} ${value}`} />}
    </li>
  );
}

function Buttons({ workload, isReplaced, trans, act }: ICardProps): React.JSX.Element {
  const isAlive = workload.state !== 'ended' && workload.state !== 'ending';
  const isSession = workload.kind === 'SESSION';
  const canBeKept = isSession && workload.kernels.some(kernel => kernel.lease?.can_be_kept);
  const start = isSession ? workload.start : undefined;
  const buttons: [ActionName, string, boolean][] = [
    ['keep', trans.__('Keep'), isAlive && canBeKept],
    ['extend', trans.__('Extend…'), isAlive && workload.can_extend],
    [
      'start-again',
      start ? trans.__('Try again') : trans.__('Start again'),
      isSession && workload.state === 'ended' && !isReplaced && (start ? start.path !== null : hasNotebook(workload))
    ],
    ['log', trans.__('Log'), !start],
    ['stop', workload.state === 'starting' ? trans.__('Cancel') : trans.__('Stop'), isAlive]
  ];
  return (
    <div className="openai4s-Card-buttons">
      {buttons
        .filter(([, , isShown]) => isShown)
        .map(([name, label]) => (
          <button
            key={name}
            data-action={name}
            className={`jp-mod-styled ${name === 'stop' ? 'jp-mod-warn' : 'jp-mod-reject'}`}
            aria-label={trans.__('%1: %2', label, title(workload))}
            onClick={() => {
              act(name, workload);
            }}
          >
            {label}
          </button>
        ))}
    </div>
  );
}
