/**
 * The kernels that are open in this page: which session context holds which, and the connection of each.
 *
 * A kernel that was queued for long may have a WebSocket that gave up. When its session is ready it is connected
 * again, which keeps the cells that were run meanwhile.
 */

import { ISessionContext } from '@jupyterlab/apputils';
import { Session } from '@jupyterlab/services';
import { ISignal, Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';

import { Guide, IGoal } from './guide';
import { ISession } from './model/seam';
import { SessionsModel } from './model/sessions';

/** A connection that is being made gets so long before it is made anew. */
const PATIENCE_MS = 1500;
/** As kernelspecs name it whose kernels are in sessions. */
const PROVISIONER = 'openai4s-provisioner';

export class OpenKernels {
  constructor(
    private readonly _model: SessionsModel,
    list: () => Promise<Session.IModel[]>
  ) {
    this._guide = new Guide(_model, list);
    _model.changed.connect(this._onModel, this);
  }

  /** A notebook or console was opened or closed, or has another kernel. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  add(context: ISessionContext): void {
    this._contexts.add(context);
    context.kernelChanged.connect(this._onKernel, this);
    context.disposed.connect(this._onDisposed, this);
    this._onKernel(context);
  }

  holds(kernelId: string): boolean {
    return this.context(kernelId) !== undefined;
  }

  context(kernelId: string): ISessionContext | undefined {
    return [...this._contexts].find(each => this._guide.goal(each) === kernelId || this._lastId.get(each) === kernelId);
  }

  /** This kernel was started for what is open at a path; undefined when nothing is open there. */
  lead(path: string, goal: IGoal): ISessionContext | undefined {
    const context = this.contextOfPath(path);
    if (context) {
      this._guide.lead(context, goal, this._lastId.get(context));
      this._changed.emit();
    }
    return context;
  }

  /** Of a notebook or console; undefined for anything else. */
  contextOfWidget(widget: Widget | null): ISessionContext | undefined {
    return [...this._contexts].find(
      each => widget !== null && 'sessionContext' in widget && widget.sessionContext === each
    );
  }

  contextOfPath(path: string): ISessionContext | undefined {
    return [...this._contexts].find(each => each.path === path);
  }

  /** The session of what a context holds, or held last: a dead kernel's end is told too. */
  session(context: ISessionContext): ISession | undefined {
    const goal = this._guide.goal(context);
    const next = goal === undefined ? undefined : this._model.ofKernel(goal);
    if (next !== undefined) {
      return next; // what was started is told before the notebook is connected to it
    }
    const kernelId = this._lastId.get(context);
    return kernelId === undefined ? this._model.ofPath(context.path) : this._model.ofKernel(kernelId);
  }

  private _onKernel(context: ISessionContext): void {
    const kernelId = context.session?.kernel?.id;
    if (kernelId !== undefined) {
      this._lastId.set(context, kernelId);
      if (isOurs(context)) {
        this._model.expect(kernelId);
      } else {
        this._model.kernelSeen(kernelId);
      }
    }
    this._guide.look(context);
    this._changed.emit();
  }

  private _onDisposed(context: ISessionContext): void {
    this._contexts.delete(context);
    this._changed.emit();
  }

  private _onModel(): void {
    for (const context of this._contexts) {
      const kernel = context.session?.kernel;
      if (!kernel || this._model.ofKernel(kernel.id)?.state !== 'ready' || kernel.connectionStatus === 'connected') {
        this._waiting.delete(context);
      } else if (!this._waiting.has(context)) {
        this._waiting.add(context);
        setTimeout(() => {
          this._reconnect(context, kernel.id);
        }, PATIENCE_MS);
      }
    }
  }

  private _reconnect(context: ISessionContext, kernelId: string): void {
    const kernel = context.session?.kernel;
    const isWanted = this._waiting.delete(context) && kernel?.id === kernelId;
    if (isWanted && !kernel.isDisposed && kernel.connectionStatus !== 'connected') {
      kernel.reconnect().catch((reason: unknown) => {
        console.warn('The kernel did not answer yet; it is tried again.', reason);
        this._model.readSoon();
      });
    }
  }

  private readonly _guide: Guide;
  private readonly _changed = new Signal<this, void>(this);
  private readonly _contexts = new Set<ISessionContext>();
  private readonly _lastId = new WeakMap<ISessionContext, string>();
  private readonly _waiting = new Set<ISessionContext>();
}

/** Whether its kernelspec says that this kernel is in a session. */
function isOurs(context: ISessionContext): boolean {
  const name = context.session?.kernel?.name;
  const stanza = name === undefined ? undefined : context.specsManager.specs?.kernelspecs[name]?.metadata;
  const provisioner = stanza?.['kernel_provisioner'];
  return (
    typeof provisioner === 'object' &&
    provisioner !== null &&
    'provisioner_name' in provisioner &&
    provisioner['provisioner_name'] === PROVISIONER
  );
}
