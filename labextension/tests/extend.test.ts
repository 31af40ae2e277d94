import { describe, expect, it } from 'vitest';

import { extensions, usual } from '../src/model/extend';

describe('how much longer a session may run', () => {
  it('is what its profile leaves, and what is usual below that', () => {
    expect(extensions(7200).map(each => each.seconds)).toEqual([900, 3600, 7200]);
    expect(extensions(100_000).map(each => each.seconds)).toEqual([900, 3600, 14_400, 100_000]);
    expect(extensions(7200).map(each => each.isMost)).toEqual([false, false, true]);
  });

  it('is one choice where little is left, and twice the same nowhere', () => {
    expect(extensions(300)).toEqual([{ seconds: 300, isMost: true }]);
    expect(extensions(3600).map(each => each.seconds)).toEqual([900, 3600]);
    expect(extensions(0)).toEqual([]);
  });

  it('is an hour if nothing is chosen, or all that there is', () => {
    expect(usual(7200)).toBe(3600);
    expect(usual(600)).toBe(600);
  });
});
