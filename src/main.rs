//! Parses the command line, reads the configuration, runs the command, and turns its outcome into an exit code.

use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;

use walpost::cli::{self, BenchArgs, Cli, Command, ParkedCommand, RecoverArgs, SetupArgs, WhichParked, exit};
use walpost::commands;
use walpost::commands::bench::{BenchError, BenchOptions};
use walpost::commands::demo::DemoError;
use walpost::commands::doctor::DoctorOptions;
use walpost::commands::parked::{ParkedCommandError, ParkedOptions, Which};
use walpost::commands::recover::{RecoverError, RecoverOptions};
use walpost::commands::run::RunError;
use walpost::commands::setup::{SetupError, SetupOptions};
use walpost::commands::teardown::{TeardownError, TeardownOptions};
use walpost::config::{Config, Environment, Loaded, LogFormat};
use walpost::error_text::ErrorText as _;
use walpost::relay::RunOptions;
use walpost::telemetry::logging;

/// Of Rust and C alike: librdkafka allocates for each record on the loop's thread and frees on its own, which makes the
/// system's allocator a fifth of the relay's CPU.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// One arena: threads that allocate for each other leave holes in each other's. Read by jemalloc before `main`.
#[allow(non_upper_case_globals, reason = "the name that jemalloc looks for")]
#[unsafe(no_mangle)]
// SAFETY: nothing else exports the name; jemalloc only reads the zero-terminated text.
pub static malloc_conf: Option<&'static std::ffi::c_char> = Some(unsafe { &*c"narenas:1,muzzy_decay_ms:0".as_ptr() });

fn main() -> ExitCode {
    let cli = Cli::parse();
    exit_on_panic();
    let environment = Environment::from_process();
    // One thread for the loop and what wakes it: each hop to another one costs more than the work on a row.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("walpost: no thread could be started: {error}");
            return ExitCode::from(exit::TEMPORARY);
        }
    };
    let code = match runtime.block_on(run(&cli, &environment)) {
        Ok(code) => code,
        // Whoever read our output has heard enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => exit::DONE,
        Err(error) => {
            eprintln!("walpost: the result could not be written: {error}");
            exit::TEMPORARY
        }
    };
    // Nothing that still waits (a name look-up, a signal) may hold the process.
    runtime.shutdown_background();
    ExitCode::from(code)
}

/// A panic is a defect of walpost, wherever it happens: half a relay must not go on.
fn exit_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::exit(i32::from(exit::BUG));
    }));
}

/// Standard output for a command that changes something: whoever stopped reading must not stop it half way.
struct Heedless(io::Stdout);

impl io::Write for Heedless {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(bytes.len()),
            written => written,
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().or(Ok(()))
    }
}

async fn run(cli: &Cli, environment: &Environment) -> io::Result<u8> {
    let mut out = io::stdout();
    match &cli.command {
        Command::Version(args) => return commands::version::run(args, &mut out).map(|()| exit::DONE),
        Command::Config(args) => {
            return commands::config::run(cli, &args.command, environment, &mut out, &mut io::stderr());
        }
        _ => {}
    }
    let Loaded { config, warnings, .. } = match cli::load(cli, environment) {
        Ok(loaded) => loaded,
        Err(errors) => {
            writeln!(io::stderr(), "{errors}")?;
            return Ok(exit::CONFIGURATION);
        }
    };
    // A one-shot command is read by a person, or by a script that reads its standard output.
    let mut log = config.log.clone();
    if !matches!(cli.command, Command::Run(_)) && log.format.is_none() && io::stdout().is_terminal() {
        log.format = Some(LogFormat::Pretty);
    }
    if matches!(cli.command, Command::Bench(_)) && log.level == Config::default().log.level {
        // What the relay has to say while it is measured would bury the progress.
        log.level = "error".to_owned();
    }
    let _logging = match logging::init(&log) {
        Ok(guard) => guard,
        Err(error) => {
            writeln!(io::stderr(), "walpost: {}", error.text())?;
            return Ok(exit::CONFIGURATION);
        }
    };
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    match &cli.command {
        Command::Run(args) => {
            let prepare = args.setup.then(|| commands::run::setup(&config));
            let options = RunOptions { prepare, until_caught_up: args.until_caught_up };
            end(commands::run::run(config, options).await, RunError::exit_code)
        }
        Command::Status(args) => {
            commands::status::run(&config, args.json, commands::run::look_at_slot(&config), &mut out).await?;
            Ok(exit::DONE)
        }
        Command::Setup(args) => {
            let SetupArgs { print, create_table, preset: _, grants, adopt, accept_gap } = args.clone();
            let options = SetupOptions { print, create_table, grants, adopt, accept_gap };
            end(commands::setup::run(&config, &options, &mut Heedless(out)).await, SetupError::exit_code)
        }
        Command::Doctor(args) => {
            let options = DoctorOptions { json: args.json };
            let kafka = commands::doctor::kafka::look(&config);
            let well = commands::doctor::run(&config, options, kafka, &mut out).await?;
            Ok(if well { exit::DONE } else { exit::FOUND })
        }
        Command::Recover(args) => {
            let RecoverArgs { dry_run, yes, json, all_rows, after_pg_upgrade, unmarked_only } = args.clone();
            let options = RecoverOptions { dry_run, yes, json, all_rows, after_pg_upgrade, unmarked_only };
            let mut answers = io::BufReader::new(io::stdin());
            let ask = io::stdin().is_terminal().then_some(&mut answers as &mut (dyn io::BufRead + Send));
            end(commands::recover::run(config, options, ask, &mut Heedless(out)).await, RecoverError::exit_code)
        }
        Command::Parked(args) => {
            let which = |which: &WhichParked| if which.all { Which::All } else { Which::These(which.ids.clone()) };
            let options = match &args.command {
                ParkedCommand::List { all, limit, json } => {
                    ParkedOptions::List { all: *all, limit: *limit, json: *json }
                }
                ParkedCommand::Show { id, json } => ParkedOptions::Show { id: *id, json: *json },
                ParkedCommand::Retry { which: these, json } => {
                    ParkedOptions::Retry { which: which(these), json: *json }
                }
                ParkedCommand::Discard { which: these, yes, json } => {
                    ParkedOptions::Discard { which: which(these), yes: *yes, json: *json }
                }
            };
            let mut answers = io::BufReader::new(io::stdin());
            let ask = io::stdin().is_terminal().then_some(&mut answers as &mut (dyn io::BufRead + Send));
            end(commands::parked::run(&config, options, ask, &mut out).await, ParkedCommandError::exit_code)
        }
        Command::Teardown(args) => {
            let mut answers = io::BufReader::new(io::stdin());
            let ask = io::stdin().is_terminal().then_some(&mut answers as &mut (dyn io::BufRead + Send));
            let options = TeardownOptions { yes: args.yes };
            end(commands::teardown::run(&config, options, ask, &mut Heedless(out)).await, TeardownError::exit_code)
        }
        Command::Bench(args) => {
            let BenchArgs { rows, rows_per_commit, payload_bytes, keys, rate, seconds, writers, partitions, json } =
                args.clone();
            let options =
                BenchOptions { rows, rows_per_commit, payload_bytes, keys, rate, seconds, writers, partitions, json };
            end(commands::bench::run(&config, options, &mut Heedless(out)).await, BenchError::exit_code)
        }
        Command::Demo(_) => end(commands::demo::run().await, DemoError::exit_code),
        Command::Version(_) | Command::Config(_) => Ok(exit::DONE),
    }
}

/// Prints a failure with its causes, once, and turns it into an exit code.
fn end<E: std::error::Error>(outcome: Result<(), E>, code: impl Fn(&E) -> u8) -> io::Result<u8> {
    let Err(error) = outcome else { return Ok(exit::DONE) };
    writeln!(io::stderr(), "walpost: {}", error.text())?;
    Ok(code(&error))
}
