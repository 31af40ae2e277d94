/**
 * "New cluster notebook": asks what is wanted, reserves the start under a kernel id of our choice, and starts it.
 *
 * The choice is remembered in the notebook's metadata, and offered again for that notebook.
 */

import { JupyterFrontEnd } from '@jupyterlab/application';
import { ISessionContext } from '@jupyterlab/apputils';
import { NotebookPanel } from '@jupyterlab/notebook';
import { TranslationBundle } from '@jupyterlab/translation';
import { UUID } from '@lumino/coreutils';

import { Client } from '../client';
import { firstChoice, fromMetadata, IChoice, IRemembered, METADATA_KEY, toMetadata } from '../model/launch';

export interface IStarterOptions {
  app: JupyterFrontEnd;
  client: Client;
  trans: TranslationBundle;
}

export class Starter {
  constructor(private readonly _options: IStarterOptions) {}

  /** A fresh notebook in `folder`, with a kernel of the chosen size. */
  async newNotebook(folder: string): Promise<void> {
    const { app, trans } = this._options;
    const choice = await this._ask(this._lastChoice, trans.__('New cluster notebook'), trans.__('Start'));
    if (choice === null) {
      return;
    }
    const { contents, sessions } = app.serviceManager;
    const id = await this._reserve(choice); // first: what is refused leaves no empty notebook behind
    const file = await contents.newUntitled({ path: folder, type: 'notebook' });
    const kernel = { id, name: choice.kernelName }; // an id that does not exist yet is used for the new kernel
    const session = await sessions.startNew({ path: file.path, type: 'notebook', name: file.name, kernel });
    session.dispose(); // only this connection: the notebook makes its own
    const opened: unknown = await app.commands.execute('docmanager:open', {
      path: file.path,
      factory: 'Notebook',
      kernel
    });
    if (opened instanceof NotebookPanel) {
      await opened.context.ready;
      this._remember(opened, choice);
      await opened.context.save();
    }
  }

  /** Another kernel for an open notebook, of a size that is asked for. */
  async changeKernel(panel: NotebookPanel): Promise<void> {
    const { trans } = this._options;
    const metadata: unknown = panel.context.model.getMetadata(METADATA_KEY);
    const first = fromMetadata(metadata) ?? this._lastChoice;
    const choice = await this._ask(first, trans.__('Cluster kernel for this notebook'), trans.__('Start'));
    if (choice === null) {
      return;
    }
    const context: ISessionContext = panel.sessionContext;
    const id = await this._reserve(choice);
    await context.shutdown();
    this._remember(panel, choice);
    await context.changeKernel({ id, name: choice.kernelName });
  }

  private async _ask(remembered: IRemembered | null, title: string, accept: string): Promise<IChoice | null> {
    const { app, client, trans } = this._options;
    const [profiles, dialog] = await Promise.all([client.profiles(), import('./dialog')]);
    const first = firstChoice(profiles, remembered);
    if (first === null) {
      throw new Error(
        trans.__('No session kernel is installed. Run "jupyter openai4s kernels install", then reload this page.')
      );
    }
    await app.serviceManager.kernelspecs.ready;
    const specs = app.serviceManager.kernelspecs.specs?.kernelspecs ?? {};
    const kernelNames = Object.fromEntries(
      Object.entries(specs).map(([name, spec]) => [name, spec?.display_name ?? name])
    );
    const offered = profiles.filter(each => each.kernelspecs.length > 0);
    const choice = await dialog.askForChoice({ title, accept, profiles: offered, first, kernelNames, trans });
    this._lastChoice = choice ?? this._lastChoice;
    return choice;
  }

  private async _reserve(choice: IChoice): Promise<string> {
    const kernelId = UUID.uuid4();
    await this._options.client.launch({
      kernel_id: kernelId,
      profile: choice.profile,
      kernel_name: choice.kernelName,
      resources: choice.amounts
    });
    return kernelId;
  }

  private _remember(panel: NotebookPanel, choice: IChoice): void {
    panel.context.model.setMetadata(METADATA_KEY, toMetadata(choice));
  }

  private _lastChoice: IChoice | null = null;
}
