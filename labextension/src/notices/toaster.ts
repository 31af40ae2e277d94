/**
 * Shows the wanted notifications and takes back the others: one toast for each key, its text updated in place.
 *
 * JupyterLab loses an update that follows too soon on what came before (the old text stays on the screen), so each
 * toast is touched at most once in a second; the newest text wins.
 */

import { Notification } from '@jupyterlab/apputils';

import { ActionName, INotice } from '../model/notices';
import { ISession } from '../model/seam';

const PAUSE_MS = 1200;
const PASSING_MS = 4000;

interface IToast {
  id: string;
  shown: INotice;
  touchedAt: number;
  next: INotice | null;
  timer: ReturnType<typeof setTimeout> | undefined;
}

export class Toaster {
  constructor(private readonly _act: (name: ActionName, session: ISession) => void) {
    Notification.manager.changed.connect(this._onChanged, this);
  }

  show(wanted: readonly INotice[]): void {
    const keys = new Set(wanted.map(notice => notice.key));
    for (const notice of wanted) {
      const toast = this._toasts.get(notice.key);
      if (toast) {
        this._offer(toast, notice);
      } else if (!this._closed.has(notice.key)) {
        this._emit(notice);
      }
    }
    for (const [key, toast] of this._toasts) {
      if (!keys.has(key)) {
        this._takeBack(key, toast);
      }
    }
  }

  private _emit(notice: INotice): void {
    if (notice.isPassing) {
      return; // nothing was shown before, so there is nothing to bring to its end
    }
    const id = Notification.emit(notice.text, notice.kind, this._options(notice));
    this._toasts.set(notice.key, { id, shown: notice, touchedAt: Date.now(), next: null, timer: undefined });
  }

  private _offer(toast: IToast, notice: INotice): void {
    const last = toast.next ?? toast.shown;
    if (last.text === notice.text && last.kind === notice.kind) {
      return;
    }
    toast.next = notice;
    clearTimeout(toast.timer);
    toast.timer = setTimeout(
      () => {
        this._update(toast, notice);
      },
      Math.max(0, toast.touchedAt + PAUSE_MS - Date.now())
    );
  }

  private _update(toast: IToast, notice: INotice): void {
    toast.shown = notice;
    toast.next = null;
    toast.touchedAt = Date.now();
    Notification.update({ id: toast.id, message: notice.text, type: notice.kind, ...this._options(notice) });
  }

  private _takeBack(key: string, toast: IToast): void {
    clearTimeout(toast.timer);
    this._toasts.delete(key);
    const wait = Math.max(0, toast.touchedAt + PAUSE_MS - Date.now());
    setTimeout(() => {
      Notification.dismiss(toast.id);
    }, wait);
  }

  private _options(notice: INotice): Notification.IOptions<null> {
    const actions = notice.actions.map(action => ({
      label: action.label,
      caption: action.caption,
      callback: () => {
        this._act(action.name, notice.session);
      }
    }));
    return { autoClose: notice.isPassing ? PASSING_MS : false, actions };
  }

  /** A person closed it: the same is not shown again. */
  private _onChanged(_: unknown, change: Notification.IChange): void {
    if (change.type !== 'removed') {
      return;
    }
    for (const [key, toast] of this._toasts) {
      if (toast.id === change.notification.id) {
        clearTimeout(toast.timer);
        this._toasts.delete(key);
        this._closed.add(key);
      }
    }
  }

  private readonly _toasts = new Map<string, IToast>();
  private readonly _closed = new Set<string>();
}
