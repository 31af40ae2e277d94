/**
 * The section "Cluster sessions" in JupyterLab's panel of what runs.
 */

import { IRunningSessions } from '@jupyterlab/running';
import { TranslationBundle } from '@jupyterlab/translation';

import { Actions } from './actions';
import { stateIcon } from './icons';
import { IBatch, ISession } from './model/seam';
import { SessionsModel } from './model/sessions';
import { hasFailed, stateWord, title } from './model/words';

export function runningSection(
  model: SessionsModel,
  actions: Actions,
  trans: TranslationBundle
): IRunningSessions.IManager {
  const alive = (): (ISession | IBatch)[] =>
    [...model.sessions, ...model.batches].filter(each => each.state !== 'ended');
  const item = (workload: ISession | IBatch): IRunningSessions.IRunningItem => ({
    className: 'openai4s-Running',
    context: workload.workload_id,
    icon: () => stateIcon(workload.state, hasFailed(workload)),
    label: () => title(workload),
    labelTitle: () => workload.sentence,
    detail: () => stateWord(workload, trans),
    open: () => void actions.perform('show', workload),
    shutdown: () => void actions.perform('stop', workload)
  });
  return {
    name: trans.__('Cluster sessions'),
    running: () => alive().map(item),
    refreshRunning: () => {
      model.readSoon();
    },
    runningChanged: model.changed,
    shutdownAll: () => {
      for (const workload of alive()) {
        void actions.perform('stop', workload);
      }
    },
    supportsMultipleViews: false,
    shutdownLabel: trans.__('Stop'),
    shutdownAllLabel: trans.__('Stop All'),
    shutdownAllConfirmationText: trans.__('Stop all sessions and commands? Variables of their kernels are lost.')
  };
}
