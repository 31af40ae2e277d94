import jupyter from '@jupyter/eslint-plugin';
import tseslint from 'typescript-eslint';

export default tseslint.config(
  { ignores: ['lib', 'dist', 'node_modules'] },
  ...tseslint.configs.strictTypeChecked,
  ...jupyter.configs.recommended,
  {
    files: ['src/**/*.{ts,tsx}', 'tests/**/*.ts'],
    languageOptions: { parserOptions: { project: './tsconfig.eslint.json', tsconfigRootDir: import.meta.dirname } },
    rules: {
      'max-lines': ['error', 400],
      eqeqeq: 'error',
      '@typescript-eslint/restrict-template-expressions': ['error', { allowNumber: true }],
      // Lumino's signals take the receiver as a second argument.
      '@typescript-eslint/unbound-method': 'off',
      // What is large is loaded lazily (panel, dialog, log); a test holds the size of the rest.
      'jupyter/prefer-lazy-imports': 'off'
    }
  },
  { files: ['tests/**/*.ts'], rules: { 'jupyter/no-untranslated-string': 'off' } }
);
