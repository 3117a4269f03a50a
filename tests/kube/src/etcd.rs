//! The little that is asked of etcd itself: its JSON gateway, over HTTP/1.1.

use std::{net::Ipv4Addr, time::Duration};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

const ANSWER: Duration = Duration::from_secs(30);

pub(crate) async fn is_healthy(port: u16) -> bool {
    let Ok((status, body)) = call(port, "GET", "/health", "").await else { return false };
    // "true" is text in some versions.
    status == 200 && (body["health"] == "true" || body["health"] == true)
}

/// Compacts so that nobody can be told any more what changed until now, and waits until
/// that is done.
pub(crate) async fn compact(port: u16) -> Result<()> {
    // The newest revision stays; so it is made that of a key ("compacted") that is nobody's.
    let put = r#"{"key":"Y29tcGFjdGVk"}"#;
    let (status, body) = call(port, "POST", "/v3/kv/put", put).await?;
    ensure!(status == 200, "etcd answered {status}: {body}");
    let revision = body["header"]["revision"].as_str().context("no revision in etcd's answer")?;
    let request = json!({ "revision": revision, "physical": true }).to_string();
    let (status, body) = call(port, "POST", "/v3/kv/compaction", &request).await?;
    ensure!(status == 200, "etcd answered {status}: {body}");
    Ok(())
}

/// Status and body of an answer.
async fn call(port: u16, method: &str, path: &str, body: &str) -> Result<(u16, Value)> {
    // HTTP/1.0, so that the answer comes in one piece that ends with the connection.
    let request = format!(
        "{method} {path} HTTP/1.0\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = timeout(ANSWER, async {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        anyhow::Ok(answer)
    })
    .await
    .context("etcd does not answer")??;
    let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP answer from etcd")?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.context("no status in etcd's answer")?;
    Ok((status, serde_json::from_str(body).unwrap_or(Value::Null)))
}
