//! The Python client of `tests/compat`: a client of the Dubbo control plane in another
//! language, made from the contract.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};

/// For one order; the client itself gives up sooner.
const LIMIT: Duration = Duration::from_secs(60);

/// A process of the client.
pub(crate) struct Python {
    _child: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Python {
    /// Starts one. The first time packages are fetched from PyPI; they are kept.
    pub(crate) async fn start() -> Result<Self> {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let python = interpreter(&repository).await?;
        let mut child = Command::new(python)
            .arg(repository.join("tests/compat/client.py"))
            .arg(repository.join("api/proto"))
            .env_remove("PYTHONPATH")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let orders = child.stdin.take().context("stdin")?;
        let answers = BufReader::new(child.stdout.take().context("stdout")?).lines();
        Ok(Self { _child: child, orders, answers })
    }

    /// Gives an order; the answer, also when it tells of an error.
    pub(crate) async fn order(&mut self, order: Value) -> Result<Value> {
        self.orders.write_all(format!("{order}\n").as_bytes()).await?;
        let answer = timeout(LIMIT, self.answers.next_line()).await;
        let answer = answer.with_context(|| format!("no answer to {order}"))??;
        let answer = answer.with_context(|| format!("the client ended at {order}"))?;
        Ok(serde_json::from_str(&answer)?)
    }

    /// As [`Python::order`], for what must go well.
    pub(crate) async fn well(&mut self, order: Value) -> Result<Value> {
        let answer = self.order(order.clone()).await?;
        if answer.get("error").is_some() || answer.get("end").is_some() {
            bail!("{order}: {answer}");
        }
        Ok(answer)
    }

    /// The next response and its items by key; of the type, and acknowledged.
    pub(crate) async fn next(&mut self, kind: &str) -> Result<Vec<(String, Value)>> {
        let type_name = format!("dubbo.apache.org/v1alpha1/{kind}");
        let response = self.well(json!({"do": "next"})).await?;
        ensure!(response["type"] == type_name, "{response}");
        let ack = json!({"do": "send", "type": type_name, "nonce": response["nonce"]});
        self.well(ack).await?;
        let items = response["data"].as_array().context("data")?;
        let url = format!("type.googleapis.com/dubbo.apache.org.v1alpha1.{kind}ToClient");
        ensure!(items.iter().all(|item| item["url"] == url), "{response}");
        let item = |item: &Value| Some((item["key"].as_str()?.to_owned(), item["spec"].clone()));
        items.iter().map(item).collect::<Option<_>>().context("keys")
    }
}

async fn interpreter(repository: &Path) -> Result<PathBuf> {
    let made = Command::new(repository.join("tests/compat/setup"))
        .arg(env!("CARGO_TARGET_TMPDIR"))
        .stdin(Stdio::null())
        .output()
        .await
        .context("tests/compat/setup does not run")?;
    ensure!(
        made.status.success(),
        "the Python client cannot be set up:\n{}",
        String::from_utf8_lossy(&made.stderr)
    );
    Ok(String::from_utf8(made.stdout)?.trim().into())
}
