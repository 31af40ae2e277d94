import { describe, expect, it } from 'vitest';

import { EventStream } from '../src/model/stream';

const TEXT = 'id: 1:3\ndata: one\n\n: \n\nid: 1:9\ndata: a: b\n\ndata:\n\nevent: end\ndata: It is over.\n\n';
const EVENTS = [
  { name: 'message', id: '1:3', data: 'one' },
  { name: 'message', id: '1:9', data: 'a: b' },
  { name: 'message', id: '1:9', data: '' },
  { name: 'end', id: '1:9', data: 'It is over.' }
];

describe('a stream of events', () => {
  it('is the same however it is cut', () => {
    for (const size of [1, 2, 3, 7, TEXT.length]) {
      const stream = new EventStream();
      const pieces = TEXT.match(new RegExp(`[^]{1,${size}}`, 'g')) ?? [];
      expect(pieces.flatMap(piece => stream.take(piece))).toEqual(EVENTS);
    }
  });

  it('has no event that did not end', () => {
    expect(new EventStream().take('data: half')).toEqual([]);
    expect(new EventStream().take('data: half\n')).toEqual([]);
  });
});
