/**
 * The commands of this extension, for the palette, the launcher, menus and our own buttons.
 */

import { JupyterFrontEnd } from '@jupyterlab/application';
import { ICommandPalette, Notification } from '@jupyterlab/apputils';
import { ILauncher } from '@jupyterlab/launcher';
import { INotebookTracker } from '@jupyterlab/notebook';
import { TranslationBundle } from '@jupyterlab/translation';
import { CommandRegistry } from '@lumino/commands';

import { Client } from './client';
import { clusterIcon } from './icons';
import type { Starter } from './launch/start';
import { IBatch, ISession } from './model/seam';
import { IAttention, SessionsModel } from './model/sessions';
import { title } from './model/words';
import { SidePanel } from './panel/side';

export const SHOW_PANEL = 'openai4s-provisioner:show-panel';
export const SHOW_LOG = 'openai4s-provisioner:show-log';
export const NEW_NOTEBOOK = 'openai4s-provisioner:new-notebook';
export const CHOOSE_KERNEL = 'openai4s-provisioner:choose-kernel';

export interface ICommandOptions {
  app: JupyterFrontEnd;
  client: Client;
  model: SessionsModel;
  attention: IAttention;
  notebooks: INotebookTracker;
  panel: SidePanel;
  trans: TranslationBundle;
}

export function addCommands(options: ICommandOptions): void {
  const { app, client, model, attention, notebooks, panel, trans } = options;
  const { commands } = app;
  const workloadArgs = {
    type: 'object',
    properties: { workload_id: { type: 'string', description: trans.__('Identifier of a session or command') } }
  } as const;
  commands.addCommand(SHOW_PANEL, {
    label: trans.__('Show Cluster Sessions'),
    caption: trans.__('What waits, runs and ended, and what can be done about it'),
    icon: clusterIcon,
    describedBy: { args: workloadArgs },
    execute: async args => {
      app.shell.activateById(panel.id);
      if (typeof args['workload_id'] === 'string') {
        await panel.select(args['workload_id']);
      }
    }
  });
  commands.addCommand(SHOW_LOG, {
    label: trans.__('Show the Log of a Cluster Session'),
    describedBy: { args: workloadArgs },
    execute: async args => {
      const workload = model.find(textOf(args['workload_id']));
      if (workload) {
        const { logId, logTab } = await import('./panel/log');
        const { workload_id: workloadId, kind, hosts } = workload;
        const id = logId(workloadId);
        if (![...app.shell.widgets('main')].some(each => each.id === id)) {
          const ranks = workersOf(workload);
          const tab = logTab({ client, trans, attention, workloadId, kind, title: title(workload), ranks, hosts });
          app.shell.add(tab, 'main', { mode: 'split-bottom' });
        }
        app.shell.activateById(id);
      }
    }
  });
  const starter = lazily(async () => new (await import('./launch/start')).Starter({ app, client, trans }));
  const folderArgs = {
    type: 'object',
    properties: { cwd: { type: 'string', description: trans.__('Folder of the notebook') } }
  } as const;
  commands.addCommand(NEW_NOTEBOOK, {
    label: args => (args['isLauncher'] ? trans.__('New cluster notebook…') : trans.__('New Cluster Notebook…')),
    caption: trans.__('Choose profile, time, GPUs, memory and CPUs for the kernel of a new notebook'),
    icon: clusterIcon,
    describedBy: { args: folderArgs },
    execute: args => telling((async () => (await starter()).newNotebook(textOf(args['cwd'])))())
  });
  commands.addCommand(CHOOSE_KERNEL, {
    label: trans.__('Choose Cluster Resources…'),
    caption: trans.__('Start another kernel for this notebook, with the resources that you choose'),
    icon: clusterIcon,
    describedBy: { args: { type: 'object', properties: {} } },
    isEnabled: () => notebooks.currentWidget !== null,
    execute: () =>
      telling(
        (async () => {
          const notebook = notebooks.currentWidget;
          if (notebook !== null) {
            await (await starter()).changeKernel(notebook);
          }
        })()
      )
  });
  commands.notifyCommandChanged();
}

/** In the palette and the launcher, where JupyterLab has them. */
export function offerCommands(
  commands: CommandRegistry,
  palette: ICommandPalette | null,
  launcher: ILauncher | null,
  trans: TranslationBundle
): void {
  for (const command of [NEW_NOTEBOOK, CHOOSE_KERNEL, SHOW_PANEL]) {
    palette?.addItem({ command, category: trans.__('Cluster') });
  }
  if (commands.hasCommand(NEW_NOTEBOOK)) {
    launcher?.add({ command: NEW_NOTEBOOK, category: trans.__('Notebook'), rank: 50, args: { isLauncher: true } });
  }
}

/** Shows what went wrong to the person who asked. */
async function telling(work: Promise<void>): Promise<void> {
  try {
    await work;
  } catch (error) {
    Notification.error(error instanceof Error ? error.message : String(error), { autoClose: 15_000 });
  }
}

/** How many workers log: one on each machine of a session. */
function workersOf(workload: ISession | IBatch): number {
  const workers = workload.kind === 'SESSION' ? workload.conditions : [];
  return workers.find(each => each.name === 'worker_registered')?.want ?? 1;
}

function textOf(value: unknown): string {
  return typeof value === 'string' ? value : '';
}

function lazily(make: () => Promise<Starter>): () => Promise<Starter> {
  let made: Promise<Starter> | undefined;
  return () => (made ??= make());
}
