//! The `terrace` program.

mod bench;
mod cli;
mod config_cmd;
mod failure;
mod replay;

fn main() -> std::process::ExitCode {
    cli::run()
}
