/**
 * Cells that were run while their kernel waited in the queue, over a reload of the page.
 *
 * The kernel's connection keeps them in this page's memory until the kernel is there; a reload would lose them without
 * a word. So their ids are kept in the tab's own storage, and they are run again in the page that comes after. The
 * kernel's first sign of running what this page sent makes them forgotten, so that nothing runs twice.
 */

import { ISessionContext } from '@jupyterlab/apputils';
import { INotebookTracker, NotebookActions, NotebookPanel } from '@jupyterlab/notebook';
import { KernelMessage } from '@jupyterlab/services';

import { OpenKernels } from './kernels';

const PREFIX = 'openai4s-queued:';

export class QueuedCells {
  constructor(
    private readonly _kernels: OpenKernels,
    private readonly _notebooks: INotebookTracker
  ) {
    NotebookActions.executionScheduled.connect(this._onScheduled, this);
    _notebooks.widgetAdded.connect(this._onAdded, this);
  }

  private _onScheduled(_: unknown, { notebook, cell }: { notebook: unknown; cell: { model: { id: string } } }): void {
    const panel = this._notebooks.find(each => each.content === notebook);
    const kernel = panel?.sessionContext.session?.kernel;
    if (kernel && this._kernels.session(panel.sessionContext)?.state === 'starting') {
      const ids = idsOf(kernel.id);
      sessionStorage.setItem(PREFIX + kernel.id, JSON.stringify([...ids, cell.model.id]));
    }
  }

  /** All that waited was sent together, once the kernel was connected. */
  private _forgetSent(context: ISessionContext, message: KernelMessage.IMessage): void {
    const kernel = context.session?.kernel;
    const parent = message.parent_header;
    const isOurs = 'msg_type' in parent && parent.msg_type === 'execute_request' && parent.session === kernel?.clientId;
    if (kernel && isOurs && !this._fromBefore.has(kernel.id)) {
      sessionStorage.removeItem(PREFIX + kernel.id);
    }
  }

  private _onAdded(_: unknown, panel: NotebookPanel): void {
    panel.sessionContext.iopubMessage.connect(this._forgetSent, this);
    void this._runAgain(panel);
  }

  private async _runAgain(panel: NotebookPanel): Promise<void> {
    const { context, content, sessionContext } = panel;
    await Promise.all([context.ready, sessionContext.ready]);
    const kernel = sessionContext.session?.kernel;
    const ids = kernel && this._fromBefore.get(kernel.id);
    if (kernel && ids) {
      this._fromBefore.delete(kernel.id);
      sessionStorage.removeItem(PREFIX + kernel.id);
      const cells = content.widgets.filter(cell => ids.includes(cell.model.id));
      await NotebookActions.runCells(content, cells, sessionContext);
    }
  }

  /** What the page before this one had not sent, by kernel. */
  private readonly _fromBefore = new Map(
    Object.keys(sessionStorage)
      .filter(key => key.startsWith(PREFIX))
      .map(key => key.slice(PREFIX.length))
      .map(kernelId => [kernelId, idsOf(kernelId)])
  );
}

function idsOf(kernelId: string): string[] {
  try {
    const value: unknown = JSON.parse(sessionStorage.getItem(PREFIX + kernelId) ?? '[]');
    return Array.isArray(value) ? value.filter(id => typeof id === 'string') : [];
  } catch {
    return [];
  }
}
