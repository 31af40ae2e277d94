/**
 * The plugins of this extension: what is made, and what it is connected to. Nothing else.
 */

import { ILabShell, ILayoutRestorer, JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette, IToolbarWidgetRegistry } from '@jupyterlab/apputils';
import { IConsoleTracker } from '@jupyterlab/console';
import { ILauncher } from '@jupyterlab/launcher';
import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { IRunningSessionManagers } from '@jupyterlab/running';
import { SessionAPI } from '@jupyterlab/services';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator } from '@jupyterlab/translation';
import { Token } from '@lumino/coreutils';

import { Actions } from './actions';
import { Badge } from './badge/badge';
import { Client } from './client';
import { addCommands, offerCommands, NEW_NOTEBOOK, SHOW_PANEL } from './commands';
import { OpenKernels } from './kernels';
import { IAttention, SessionsModel } from './model/sessions';
import { followNotices } from './notices/follow';
import { PageAttention } from './page';
import { SidePanel } from './panel/side';
import { QueuedCells } from './queued';
import { runningSection } from './running';

/** What the plugins share. */
interface ISessions {
  model: SessionsModel;
  client: Client;
  attention: IAttention;
  kernels: OpenKernels;
  actions: Actions;
}

const ISessions = new Token<ISessions>('openai4s-provisioner:ISessions', 'Sessions and commands on the cluster.');

const TRANSLATIONS = 'openai4s_provisioner';

const sessions: JupyterFrontEndPlugin<ISessions> = {
  id: 'openai4s-provisioner:sessions',
  description: 'What is known of sessions and commands, and the kernels that are open in this page.',
  autoStart: true,
  provides: ISessions,
  requires: [ITranslator],
  optional: [INotebookTracker, IConsoleTracker],
  activate: (
    app: JupyterFrontEnd,
    translator: ITranslator,
    notebooks: INotebookTracker | null,
    consoles: IConsoleTracker | null
  ): ISessions => {
    const client = new Client(app.serviceManager.serverSettings);
    const attention = new PageAttention();
    const model = new SessionsModel(client, attention);
    const kernels = new OpenKernels(model, () => SessionAPI.listRunning(app.serviceManager.serverSettings));
    app.serviceManager.events.stream.connect((_, event) => {
      model.hear(event);
    });
    app.serviceManager.connectionFailure.connect(() => {
      model.mayBeStale(); // events were lost as well
    });
    if (notebooks) {
      notebooks.widgetAdded.connect((_, panel) => {
        kernels.add(panel.sessionContext);
      });
      new QueuedCells(kernels, notebooks);
    }
    consoles?.widgetAdded.connect((_, panel) => {
      kernels.add(panel.sessionContext);
    });
    const trans = translator.load(TRANSLATIONS);
    void app.restored.then(() => {
      model.readSoon();
    });
    return { model, client, kernels, attention, actions: new Actions({ app, client, kernels, model, trans }) };
  }
};

const badges: JupyterFrontEndPlugin<void> = {
  id: 'openai4s-provisioner:plugin',
  description: "The session of a notebook's kernel, in its toolbar and in the status bar; notifications about it.",
  autoStart: true,
  requires: [ISessions, ITranslator, ISettingRegistry],
  optional: [IToolbarWidgetRegistry, IStatusBar, ILabShell],
  activate: (
    app: JupyterFrontEnd,
    { model, kernels, actions }: ISessions,
    translator: ITranslator,
    settings: ISettingRegistry,
    toolbars: IToolbarWidgetRegistry | null,
    statusBar: IStatusBar | null,
    shell: ILabShell | null
  ): void => {
    const open = (session: { workload_id: string }): void => {
      void app.commands.execute(SHOW_PANEL, { workload_id: session.workload_id });
    };
    toolbars?.addFactory<NotebookPanel>('Notebook', 'openai4s-session', panel => {
      const session = () => kernels.session(panel.sessionContext);
      const badge = new Badge({ model, translator, session, open, className: 'openai4s-mod-toolbar' });
      kernels.changed.connect(badge.refresh, badge);
      return badge;
    });
    if (statusBar && shell) {
      const current = () => {
        const widget = shell.currentWidget;
        const context = kernels.contextOfWidget(widget);
        return context && kernels.session(context);
      };
      const item = new Badge({ model, translator, session: current, open, className: 'openai4s-mod-status' });
      kernels.changed.connect(item.refresh, item);
      shell.currentChanged.connect(item.refresh, item);
      statusBar.registerStatusItem('openai4s-provisioner:status', { item, align: 'left', rank: 6 });
    }
    void followNotices({ model, kernels, actions, settings, trans: translator.load(TRANSLATIONS) });
  }
};

const panel: JupyterFrontEndPlugin<void> = {
  id: 'openai4s-provisioner:panel',
  description: 'The panel of all sessions and commands, its section in Running, and the commands.',
  autoStart: true,
  requires: [ISessions, ITranslator, INotebookTracker],
  optional: [ICommandPalette, ILauncher, ILayoutRestorer, IRunningSessionManagers],
  activate: (
    app: JupyterFrontEnd,
    { model, client, attention, actions }: ISessions,
    translator: ITranslator,
    notebooks: INotebookTracker,
    palette: ICommandPalette | null,
    launcher: ILauncher | null,
    restorer: ILayoutRestorer | null,
    running: IRunningSessionManagers | null
  ): void => {
    const trans = translator.load(TRANSLATIONS);
    const side = new SidePanel(
      {
        model,
        trans,
        act: (name, workload) => {
          void (name === 'stop' ? actions.stopAfterAsking(workload) : actions.perform(name, workload));
        },
        newNotebook: () => {
          void app.commands.execute(NEW_NOTEBOOK);
        }
      },
      trans
    );
    addCommands({ app, client, model, attention, notebooks, panel: side, trans });
    offerCommands(app.commands, palette, launcher, trans);
    app.shell.add(side, 'left', { rank: 350 });
    restorer?.add(side, side.id);
    running?.add(runningSection(model, actions, trans));
  }
};

export default [sessions, badges, panel];
