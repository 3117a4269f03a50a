use tokio::task::JoinHandle;

use super::*;

/// Far more than anything here takes.
const LONG: Duration = Duration::from_secs(10);

/// In which something would come, were it let through.
const A_WHILE: Duration = Duration::from_millis(300);

/// Sends back what it gets.
async fn echo() -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("port");
    let addr = listener.local_addr().expect("address");
    let serving = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = stream.split();
                let _ = tokio::io::copy(&mut read, &mut write).await;
                let _ = write.shutdown().await;
            });
        }
    });
    (addr, serving)
}

async fn start() -> (Proxy, JoinHandle<()>) {
    let (addr, serving) = echo().await;
    (Proxy::start(addr).await.expect("proxy"), serving)
}

async fn connect(proxy: &Proxy) -> TcpStream {
    TcpStream::connect(proxy.addr()).await.expect("the proxy listens")
}

async fn round_trip(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).await.expect("sent");
    read(stream, text).await;
}

async fn read(stream: &mut TcpStream, text: &str) {
    let mut back = vec![0; text.len()];
    let got = tokio::time::timeout(LONG, stream.read_exact(&mut back)).await;
    got.expect("in time").expect("comes back");
    assert_eq!(String::from_utf8_lossy(&back), text);
}

/// Waits until the other side has closed.
async fn closed(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    let end = tokio::time::timeout(LONG, stream.read_to_end(&mut rest)).await;
    // Either way of closing counts.
    let _ = end.expect("closed in time");
    assert!(rest.is_empty(), "nothing more comes");
}

#[tokio::test]
async fn bytes_pass_both_ways_and_so_does_the_end() {
    let (proxy, _serving) = start().await;
    let mut stream = connect(&proxy).await;
    let long = "0123456789".repeat(50_000);
    let (mut reading, mut writing) = stream.split();
    let sent = async {
        writing.write_all(long.as_bytes()).await.expect("sent");
        writing.shutdown().await.expect("ended");
    };
    let mut back = String::new();
    let (_, got) = tokio::join!(sent, reading.read_to_string(&mut back));
    got.expect("comes back, and ends");
    assert!(back == long, "{} bytes came back", back.len());
    assert_eq!(proxy.accepted(), 1);
}

#[tokio::test]
async fn a_cut_closes_what_is_open_and_nothing_later() {
    let (proxy, _serving) = start().await;
    let (mut first, mut second) = (connect(&proxy).await, connect(&proxy).await);
    round_trip(&mut first, "one").await;
    round_trip(&mut second, "two").await;
    assert_eq!(proxy.open(), 2);
    proxy.cut();
    closed(&mut first).await;
    closed(&mut second).await;
    round_trip(&mut connect(&proxy).await, "three").await;
    assert_eq!(proxy.accepted(), 3);
}

#[tokio::test]
async fn a_stall_holds_bytes_and_keeps_connections() {
    let (proxy, _serving) = start().await;
    let mut stream = connect(&proxy).await;
    round_trip(&mut stream, "before").await;
    proxy.stall(true);
    stream.write_all(b"held").await.expect("the connection is there");
    let mut late = connect(&proxy).await;
    late.write_all(b"too").await.expect("new connections are taken");
    for stream in [&mut stream, &mut late] {
        let got = tokio::time::timeout(A_WHILE, stream.read_u8()).await;
        assert!(got.is_err(), "neither bytes nor an end: {got:?}");
    }
    proxy.stall(false);
    read(&mut stream, "held").await;
    read(&mut late, "too").await;
}

#[tokio::test]
async fn bytes_are_delayed_each_way() {
    let (proxy, _serving) = start().await;
    let mut stream = connect(&proxy).await;
    round_trip(&mut stream, "quick").await;
    let delay = Duration::from_millis(150);
    proxy.delay(delay);
    let since = Instant::now();
    round_trip(&mut stream, "slow").await;
    assert!(since.elapsed() >= 2 * delay, "{:?}", since.elapsed());
    proxy.delay(Duration::ZERO);
    round_trip(&mut stream, "quick again").await;
}

#[tokio::test]
async fn nothing_listens_while_it_refuses() {
    let (proxy, _serving) = start().await;
    let mut open = connect(&proxy).await;
    round_trip(&mut open, "one").await;
    for _ in 0..20 {
        proxy.refuse(true);
        let error = TcpStream::connect(proxy.addr()).await.expect_err("refused");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        round_trip(&mut open, "still open").await;
        proxy.refuse(false);
        round_trip(&mut connect(&proxy).await, "two").await;
    }
    proxy.refuse(true);
    drop(proxy);
    closed(&mut open).await;
}
