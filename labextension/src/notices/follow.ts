/**
 * Connects the board of wanted notifications to what is known, to the settings, and to the screen.
 */

import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { TranslationBundle } from '@jupyterlab/translation';

import { Actions } from '../actions';
import { OpenKernels } from '../kernels';
import { INoticeChoice, NoticeBoard } from '../model/notices';
import { SessionsModel } from '../model/sessions';
import { Toaster } from './toaster';

const PLUGIN = 'openai4s-provisioner:plugin';
const WALLTIME_EVENTS = '/walltime/v1';

export interface IFollowOptions {
  model: SessionsModel;
  kernels: OpenKernels;
  actions: Actions;
  settings: ISettingRegistry;
  trans: TranslationBundle;
}

export async function followNotices({ model, kernels, actions, settings, trans }: IFollowOptions): Promise<void> {
  const board = new NoticeBoard(trans);
  const toaster = new Toaster((name, session) => void actions.perform(name, session));
  const chosen = await settings.load(PLUGIN);
  const refresh = (): void => {
    if (model.snapshot !== null) {
      const isOpenHere = (kernelId: string): boolean => kernels.holds(kernelId);
      toaster.show(board.wanted(model.snapshot, isOpenHere, new Date(), choiceOf(chosen)));
    }
  };
  model.heard.connect((_, event) => {
    if (event.schema_id.endsWith(WALLTIME_EVENTS) && event.workload_id !== undefined) {
      board.walltimeWarned(event.workload_id, event.state === 'warning');
    }
  });
  model.changed.connect(refresh);
  kernels.changed.connect(refresh);
  chosen.changed.connect(refresh);
  refresh();
}

function choiceOf(settings: ISettingRegistry.ISettings): INoticeChoice {
  const is = (name: string): boolean => settings.get(name).composite !== false;
  return { starting: is('notifyStarting'), ending: is('notifyEnding'), ended: is('notifyEnded') };
}
