/**
 * The text of a server's event stream (`text/event-stream` of the HTML standard), piece by piece, as events. No socket.
 */

export interface IStreamEvent {
  name: string;
  id: string;
  data: string;
}

export class EventStream {
  /** The events that are whole with this piece; what is left of it waits for the next. */
  take(piece: string): IStreamEvent[] {
    const lines = (this._rest + piece).split('\n');
    this._rest = lines.pop() ?? '';
    const events: IStreamEvent[] = [];
    for (const line of lines) {
      if (line === '') {
        events.push(...this._whole());
      } else if (!line.startsWith(':')) {
        this._field(line);
      }
    }
    return events;
  }

  private _field(line: string): void {
    const colon = line.indexOf(':');
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '');
    if (name === 'data') {
      this._data = this._data === null ? value : `${this._data}\n${value}`;
    } else if (name === 'event') {
      this._name = value;
    } else if (name === 'id') {
      this._id = value;
    }
  }

  private _whole(): IStreamEvent[] {
    const found = this._data === null ? [] : [{ name: this._name || 'message', id: this._id, data: this._data }];
    this._data = null;
    this._name = '';
    return found;
  }

  private _rest = '';
  private _data: string | null = null;
  private _name = '';
  private _id = '';
}
