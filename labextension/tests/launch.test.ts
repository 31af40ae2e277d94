import { describe, expect, it } from 'vitest';

import { choiceOf, faults, firstChoice, fromMetadata, isChoosable, toMetadata } from '../src/model/launch';
import { IProfile } from '../src/model/seam';
import { duration, memory, resources } from '../src/model/words';
import { trans } from './recorded';

const SMALL: IProfile = {
  name: 'small',
  display_name: 'small',
  is_default: false,
  resources: { walltime_s: 3600, gpus: 0, memory_mb: 4096, cpus: 1 },
  limits: { walltime_s: 14_400, gpus: 0, memory_mb: 16_384, cpus: 8 },
  kernelspecs: ['python3-small-session', 'ir-small-session']
};
const LARGE: IProfile = { ...SMALL, name: 'large', is_default: true, kernelspecs: ['python3-large-session'] };

describe('the first choice', () => {
  it('is the default profile as it is', () => {
    expect(firstChoice([SMALL, LARGE], null)).toEqual(choiceOf(LARGE));
  });

  it('is what was remembered for the notebook', () => {
    const remembered = {
      profile: 'small',
      kernelName: 'ir-small-session',
      amounts: { walltime_s: 7200, gpus: 0, memory_mb: 8192, cpus: 4 }
    };
    expect(firstChoice([SMALL, LARGE], fromMetadata(toMetadata(remembered)))).toEqual(remembered);
  });

  it('drops what the profile does not allow any more, or what is not a choice', () => {
    const remembered = {
      profile: 'small',
      kernelName: 'gone',
      amounts: { walltime_s: 999_999, gpus: 4, memory_mb: 8192, cpus: 1.5 }
    };
    const first = firstChoice([SMALL], remembered);
    expect(first?.kernelName).toBe('python3-small-session');
    expect(first?.amounts).toEqual({ walltime_s: 3600, gpus: 0, memory_mb: 8192, cpus: 1 });
    for (const value of [undefined, null, 'x', [], {}, { profile: 3 }, { profile: 'small', resources: null }]) {
      expect(fromMetadata(value)).toBeNull();
    }
  });

  it('keeps what the profile gives where nothing was remembered of it', () => {
    const remembered = { profile: 'small', kernel_name: 'ir-small-session', resources: { cpus: 2 } };
    expect(firstChoice([SMALL], fromMetadata(remembered))?.amounts).toEqual({ ...SMALL.resources, cpus: 2 });
  });

  it('does not exist where no kernel of a session is installed', () => {
    expect(firstChoice([{ ...SMALL, kernelspecs: [] }], null)).toBeNull();
  });
});

describe('a fault', () => {
  it('names the field and the limit', () => {
    const choice = choiceOf(SMALL);
    choice.amounts = { ...choice.amounts, walltime_s: 14_401, cpus: NaN };
    const found = faults(SMALL, choice, trans);
    expect(Object.keys(found)).toEqual(['walltime_s', 'cpus']);
    expect(found.walltime_s).toContain('4 h');
  });

  it('is not what the profile gives by itself, a limit that it does not state included', () => {
    const open = { ...SMALL, resources: { ...SMALL.resources, walltime_s: 0, memory_mb: 0 } };
    expect(faults(open, choiceOf(open), trans)).toEqual({});
    const little = { ...choiceOf(open), amounts: { ...open.resources, walltime_s: 59 } };
    expect(Object.keys(faults(open, little, trans))).toEqual(['walltime_s']);
  });

  it('cannot lie in what there is nothing to choose of', () => {
    expect(isChoosable(SMALL, 'gpus')).toBe(false);
    expect(faults(SMALL, choiceOf(SMALL), trans)).toEqual({});
  });
});

describe('words', () => {
  it('say amounts and durations as a person would', () => {
    expect([40, 300, 4800, 7200, 100_000].map(each => duration(each, trans))).toEqual([
      '40 s',
      '5 min',
      '1 h 20 min',
      '2 h',
      '1 day 3 h'
    ]);
    expect([512, 16_384].map(each => memory(each, trans))).toEqual(['512 MB', '16 GB']);
    expect(resources({ cpus: 4, memory_mb: 16_384, gpus: 1, nodes: 2 }, trans)).toBe(
      '4 CPUs, 16 GB, 1 GPU, 2 machines'
    );
    expect(resources({ cpus: 1, memory_mb: 0, gpus: 0, nodes: 1 }, trans)).toBe('1 CPU');
  });
});
