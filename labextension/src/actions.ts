/**
 * What a person can do about a session or command, wherever the button is: badge, panel, Running or notification.
 *
 * Each asks the server and says what it answered when that was no.
 */

import { JupyterFrontEnd } from '@jupyterlab/application';
import { Dialog, Notification, showDialog } from '@jupyterlab/apputils';
import { TranslationBundle } from '@jupyterlab/translation';

import { Client } from './client';
import { OpenKernels } from './kernels';
import { ActionName } from './model/notices';
import { IBatch, ISession } from './model/seam';
import { SessionsModel } from './model/sessions';
import { duration, title } from './model/words';

export interface IActionsOptions {
  app: JupyterFrontEnd;
  client: Client;
  kernels: OpenKernels;
  model: SessionsModel;
  trans: TranslationBundle;
}

export class Actions {
  constructor(private readonly _options: IActionsOptions) {}

  /** Does it, and shows a notification when it could not be done. */
  async perform(name: ActionName, workload: ISession | IBatch): Promise<void> {
    try {
      await this._perform(name, workload);
    } catch (error) {
      Notification.error(error instanceof Error ? error.message : String(error), { autoClose: 10_000 });
    }
    this._options.model.readSoon();
  }

  /** Asks first where a person would lose something. */
  async stopAfterAsking(workload: ISession | IBatch): Promise<void> {
    const { trans } = this._options;
    if (workload.state !== 'starting') {
      const answer = await showDialog({
        title: trans.__('Stop %1?', title(workload)),
        body:
          workload.kind === 'BATCH'
            ? trans.__('The command is ended, and its machine is given back.')
            : trans.__('Its kernel ends and its variables are lost; its machine is given back.'),
        buttons: [Dialog.cancelButton(), Dialog.warnButton({ label: trans.__('Stop') })]
      });
      if (!answer.button.accept) {
        return;
      }
    }
    await this.perform('stop', workload);
  }

  private async _perform(name: ActionName, workload: ISession | IBatch): Promise<void> {
    const { app, client } = this._options;
    const id = workload.workload_id;
    switch (name) {
      case 'stop':
        await this._stop(workload);
        break;
      case 'keep':
        await client.keep(id);
        break;
      case 'extend':
        await this._extend(workload);
        break;
      case 'start-again':
        await this._startAgain(workload);
        break;
      case 'log':
        await app.commands.execute('openai4s-provisioner:show-log', { workload_id: id, kind: workload.kind });
        break;
      case 'show':
        await app.commands.execute('openai4s-provisioner:show-panel', { workload_id: id });
        break;
    }
  }

  /** The session first, so that a start which waits is given up; then what Jupyter still holds of its kernels. */
  private async _stop(workload: ISession | IBatch): Promise<void> {
    const { app, client, kernels } = this._options;
    if (workload.kind === 'BATCH' || !workload.start) {
      await client.stop(workload.workload_id, workload.kind);
    }
    if (workload.kind === 'SESSION') {
      for (const { kernel_id } of workload.kernels) {
        const context = kernels.context(kernel_id);
        await (context ? context.shutdown() : app.serviceManager.kernels.shutdown(kernel_id).catch(ignoreGone));
      }
    }
  }

  /** Within what its profile allows; what the site refuses is told by whoever called. */
  private async _extend(workload: ISession | IBatch): Promise<void> {
    const { client, model, trans } = this._options;
    const { askForExtension } = await import('./panel/extend');
    const seconds = await askForExtension(model.find(workload.workload_id) ?? workload, trans);
    if (seconds !== null) {
      await client.extend(workload.workload_id, seconds);
      const extended = trans.__('%1 runs %2 longer.', title(workload), duration(seconds, trans));
      Notification.success(extended, { autoClose: 4000 });
    }
  }

  private async _startAgain(workload: ISession | IBatch): Promise<void> {
    const { app, client, kernels } = this._options;
    if (workload.kind === 'SESSION' && workload.start) {
      await this._tryAgain(workload);
      return;
    }
    const kernel = workload.kind === 'SESSION' ? workload.kernels.at(0) : undefined;
    const isOpen = typeof kernel?.path === 'string' && kernels.contextOfPath(kernel.path) !== undefined;
    const { kernel_id: id, path } = await client.startAgain(workload.workload_id, !isOpen);
    const name = kernel?.kernel_name;
    if (path !== null && kernels.lead(path, { id, name }) === undefined) {
      await app.commands.execute('docmanager:open', { path, kernel: { id, name } });
    }
  }

  /** A start that was refused left nothing to start again: another kernel takes its place. */
  private async _tryAgain(session: ISession): Promise<void> {
    const { app, kernels } = this._options;
    const [{ kernel_id, kernel_name, path }] = session.kernels;
    const context = kernels.context(kernel_id);
    if (context) {
      await context.changeKernel({ name: kernel_name });
    } else if (path !== null) {
      await app.serviceManager.kernels.shutdown(kernel_id).catch(ignoreGone);
      await app.commands.execute('docmanager:open', { path, kernel: { name: kernel_name } });
    }
  }
}

/** A kernel that Jupyter does not hold any more needs no shutdown. */
function ignoreGone(error: unknown): void {
  console.debug('This kernel was gone already.', error);
}
