/**
 * Leads an open notebook to the kernel that was started for it on the server.
 *
 * JupyterLab learns of that kernel by asking, and an answer may be older than the start: then it asks for a session
 * that is gone, or goes back to the kernel before. So nothing here happens once: what is there is compared with what is
 * wanted after each change, with a list that was asked for after the start, until the session is ready.
 */

import { ISessionContext } from '@jupyterlab/apputils';
import { Session } from '@jupyterlab/services';

import { SessionsModel } from './model/sessions';

const RETRY_MS = 2000;
const MOST_TRIES = 30;

export interface IGoal {
  id: string;
  name: string | undefined;
}

interface IWay extends IGoal {
  /** The kernel that it had before. */
  from: string | undefined;
  tries: number;
  isGoing: boolean;
}

export class Guide {
  constructor(
    private readonly _model: SessionsModel,
    /** The sessions of Jupyter as the server has them now. */
    private readonly _list: () => Promise<Session.IModel[]>
  ) {
    _model.changed.connect(this._onModel, this);
  }

  lead(context: ISessionContext, goal: IGoal, from: string | undefined): void {
    this._ways.set(context, { ...goal, from, tries: 0, isGoing: false });
    this._model.expect(goal.id);
    context.disposed.connect(this.forget, this);
    this.look(context);
  }

  /** The id of the kernel that a context is led to. */
  goal(context: ISessionContext): string | undefined {
    return this._ways.get(context)?.id;
  }

  /** Something about a context has changed. */
  look(context: ISessionContext): void {
    const way = this._ways.get(context);
    const current = context.session?.kernel?.id;
    if (way === undefined || way.isGoing) {
      return;
    }
    const state = this._model.ofKernel(way.id)?.state;
    const isElsewhere = current !== undefined && current !== way.id && current !== way.from;
    if (isElsewhere || state === 'ended' || (state === 'ready' && current === way.id) || way.tries >= MOST_TRIES) {
      this.forget(context); // it is there, or a person chose another one
    } else if (current !== way.id) {
      void this._go(context, way);
    }
  }

  forget(context: ISessionContext): void {
    this._ways.delete(context);
  }

  private _onModel(): void {
    for (const context of [...this._ways.keys()]) {
      this.look(context);
    }
  }

  private async _go(context: ISessionContext, way: IWay): Promise<void> {
    way.isGoing = true;
    way.tries += 1;
    try {
      const known = await this._list();
      const session = context.session;
      if (session && !known.some(each => each.id === session.id)) {
        session.dispose(); // a change of its kernel would be refused
      }
      if (this._ways.get(context) === way && context.session?.kernel?.id !== way.id) {
        await context.changeKernel({ id: way.id, name: way.name });
      }
      way.isGoing = false;
      this.look(context); // it may have been led back meanwhile
    } catch (error) {
      way.isGoing = false;
      console.warn('The notebook is not connected to its new kernel yet; it is tried again.', error);
      setTimeout(() => {
        this.look(context);
      }, RETRY_MS);
    }
  }

  private readonly _ways = new Map<ISessionContext, IWay>();
}
