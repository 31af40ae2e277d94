/**
 * Whether somebody looks at this page: while nobody does, nothing is asked of the server.
 */

import { ISignal, Signal } from '@lumino/signaling';

import { IAttention } from './model/sessions';

export class PageAttention implements IAttention {
  constructor() {
    document.addEventListener('visibilitychange', () => {
      this._changed.emit();
    });
  }

  get isLookedAt(): boolean {
    return document.visibilityState !== 'hidden';
  }

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  private readonly _changed = new Signal<this, void>(this);
}
