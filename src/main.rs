//! The `terrace` program.

mod bench;
mod cli;
mod config_cmd;
mod failure;
mod metrics_endpoint;
mod notify;
mod object_cmd;
mod replay;
mod serve;
mod tenant_cmd;

fn main() -> std::process::ExitCode {
    cli::run()
}
