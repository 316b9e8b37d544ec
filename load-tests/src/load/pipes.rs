//! A closed loop over the pipes of a stdio server, with several requests in flight that are answered in order.
//!
//! This loop measures the server's capacity without a program in front of it. All requests of one read are answered with one
//! write, as any front with that many clients could do at best.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::process::{ChildStdin, ChildStdout};
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::task::JoinSet;

use super::{Faults, Sample, Shared, Window, observe};
use crate::message::{Expect, Request};
use crate::wire::{Answer, Connection};

/// The pipes of a running stdio server.
pub(crate) struct Pipes {
    input: Sender,
    output: Receiver,
}

impl Pipes {
    pub(crate) fn new(input: ChildStdin, output: ChildStdout) -> io::Result<Self> {
        Ok(Self {
            input: Sender::from_owned_fd(OwnedFd::from(input))?,
            output: Receiver::from_owned_fd(OwnedFd::from(output))?,
        })
    }

    /// Sends a request, reads its answer, and sends a notification. Returns the answer.
    pub(crate) async fn open(&mut self, hello: &str, ready: &str) -> anyhow::Result<String> {
        self.input
            .write_all(format!("{hello}\n").as_bytes())
            .await?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\n") {
            let read = self.output.read_buf(&mut answer).await?;
            anyhow::ensure!(read > 0, "the server ended");
        }
        self.input
            .write_all(format!("{ready}\n").as_bytes())
            .await?;
        String::from_utf8(answer).context("the server's first line")
    }
}

impl From<Pipes> for Connection {
    fn from(pipes: Pipes) -> Self {
        Self::over(tokio::io::join(pipes.output, pipes.input))
    }
}

/// Runs the load once, and closes the pipes.
pub(crate) async fn measure(
    pipes: Pipes,
    request: Request,
    in_flight: usize,
    expect: Expect,
    window: &Window,
) -> anyhow::Result<Sample> {
    let shared = Shared::new()?;
    let mut client = JoinSet::new();
    let clock = Arc::clone(&shared);
    client.spawn(async move {
        if let Err(error) = drive(pipes, request, in_flight, expect, &clock).await {
            clock.fault(format!("{error:#}"));
        }
    });
    let (sample, faults): (_, Faults) = observe(&shared, client, window).await?;
    faults.none()?;
    sample
}

async fn drive(
    mut pipes: Pipes,
    mut request: Request,
    in_flight: usize,
    expect: Expect,
    shared: &Shared,
) -> anyhow::Result<()> {
    let mut waiting: VecDeque<(u64, Instant)> = VecDeque::with_capacity(in_flight);
    let mut received = Vec::with_capacity(64 * 1024);
    let mut sending = Vec::with_capacity(64 * 1024);
    let mut free = in_flight;
    loop {
        sending.clear();
        while free > 0
            && let Some(id) = shared.next_id()
        {
            sending.extend_from_slice(request.with_id(id));
            waiting.push_back((id, Instant::now()));
            free -= 1;
        }
        if waiting.is_empty() {
            return Ok(());
        }
        pipes.input.write_all(&sending).await.context("sending")?;
        let read = pipes.output.read_buf(&mut received).await;
        anyhow::ensure!(read.context("receiving")? > 0, "the server ended");
        let mut done = 0;
        while let Some(end) = received[done..].iter().position(|byte| *byte == b'\n') {
            let (id, start) = waiting.pop_front().context("an answer to no request")?;
            let took = start.elapsed();
            let answer = Answer {
                status: 200,
                head: b"",
                body: &received[done..done + end],
                closes: false,
            };
            match expect.mismatch(&answer, id) {
                None => shared.answered(took),
                Some(fault) if shared.fault(fault.clone()) => {}
                Some(fault) => anyhow::bail!(fault),
            }
            done += end + 1;
            free += 1;
        }
        received.drain(..done);
    }
}
