import { Signal } from '@lumino/signaling';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import { INotice } from '../src/model/notices';
import { Toaster } from '../src/notices/toaster';
import { session } from './recorded';

interface IShown {
  id: string;
  message: string;
  options: { actions: { callback: () => void }[] };
}

const screen = vi.hoisted(() => ({
  shown: [] as IShown[],
  touched: [] as string[],
  changed: undefined,
  Notification: {
    manager: {
      get changed(): unknown {
        return screen.changed;
      }
    },
    emit: (message: string, _: string, options: IShown['options']): string => {
      const id = `toast-${screen.shown.length}`;
      screen.shown.push({ id, message, options });
      screen.touched.push(`emit ${message}`);
      return id;
    },
    update: (changes: { id: string; message: string }): void => {
      screen.touched.push(`update ${changes.message}`);
    },
    dismiss: (id: string): void => {
      screen.touched.push(`dismiss ${id}`);
    }
  }
}));

vi.mock('@jupyterlab/apputils', () => ({ Notification: screen.Notification }));

let changed: Signal<object, unknown>;
let acted: string[];
let toaster: Toaster;

beforeEach(() => {
  vi.useFakeTimers();
  screen.shown.length = screen.touched.length = 0;
  screen.changed = changed = new Signal({});
  acted = [];
  toaster = new Toaster(name => acted.push(name));
});

afterEach(() => {
  vi.useRealTimers();
});

function notice(text: string, changes: Partial<INotice> = {}): INotice {
  const actions = [{ name: 'stop' as const, label: 'Cancel', caption: '' }];
  return { key: 'start', kind: 'in-progress', text, session: session(), actions, isPassing: false, ...changes };
}

describe('a toast', () => {
  it('is one for each key, and is touched at most once a second with the newest text', () => {
    for (const text of ['one', 'two', 'three', 'four']) {
      toaster.show([notice(text)]);
      vi.advanceTimersByTime(50);
    }
    expect(screen.touched).toEqual(['emit one']);
    vi.advanceTimersByTime(2000);
    expect(screen.touched).toEqual(['emit one', 'update four']);
  });

  it('goes when it is no longer wanted, and not too soon after it came', () => {
    toaster.show([notice('one')]);
    toaster.show([]);
    expect(screen.touched).toEqual(['emit one']);
    vi.advanceTimersByTime(2000);
    expect(screen.touched).toEqual(['emit one', 'dismiss toast-0']);
  });

  it('that a person closed does not come back, and its waiting text is dropped', () => {
    toaster.show([notice('one')]);
    toaster.show([notice('two')]);
    changed.emit({ type: 'removed', notification: { id: 'toast-0' } });
    toaster.show([notice('three')]);
    vi.advanceTimersByTime(5000);
    expect(screen.touched).toEqual(['emit one']);
  });

  it('that would only pass by is not begun', () => {
    toaster.show([notice('ready', { isPassing: true })]);
    expect(screen.touched).toEqual([]);
  });

  it('acts on its own session when its button is pressed', () => {
    toaster.show([notice('one')]);
    screen.shown[0].options.actions[0].callback();
    expect(acted).toEqual(['stop']);
  });
});
