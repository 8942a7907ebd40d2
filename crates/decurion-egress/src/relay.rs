//! Bytes on their way. Takes two connections, gives each the bytes of the other until both have said all; or reads pieces of
//! a protocol from one, within a bound.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::client_hello::{ClientHello, HelloReader};
use crate::fault::ConnectionFault;
use crate::http::{BodyLength, ChunkStart, RequestHeadError, chunk_start};
use crate::record::{Direction, Tally};

/// Bytes held per direction of a connection.
const BUFFER: usize = 16 * 1024;
/// Bytes read at once while a head or a hello is awaited.
const PIECE: usize = 4 * 1024;

/// Reads more bytes behind those that wait. An error if the peer has closed.
pub(crate) async fn fill(reader: &mut (impl AsyncRead + Unpin), pending: &mut Vec<u8>) -> io::Result<()> {
    let mut piece = [0; PIECE];
    match reader.read(&mut piece).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        count => {
            pending.extend_from_slice(&piece[..count]);
            Ok(())
        }
    }
}

/// Reads until the TLS hello is whole. The bytes stay in `pending`.
pub(crate) async fn read_hello(
    reader: &mut (impl AsyncRead + Unpin),
    pending: &mut Vec<u8>,
) -> Result<ClientHello, ConnectionFault> {
    let mut hello = HelloReader::default();
    loop {
        if let Some(hello) = hello.advance(pending)? {
            return Ok(hello);
        }
        fill(reader, pending).await?;
    }
}

/// Passes bytes on until the reader ends, then closes the writer's side.
pub(crate) async fn pump(
    reader: &mut (impl AsyncRead + Unpin),
    writer: &mut (impl AsyncWrite + Unpin),
    direction: Direction,
    tally: &Tally,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let count = reader.read(&mut buffer).await?;
        if count == 0 {
            return writer.shutdown().await;
        }
        tally.touch();
        writer.write_all(&buffer[..count]).await?;
        tally.count(direction, count);
    }
}

/// Passes on the body of a request and nothing that follows it.
pub(crate) async fn send_body(
    reader: &mut (impl AsyncRead + Unpin),
    pending: &mut Vec<u8>,
    length: BodyLength,
    writer: &mut (impl AsyncWrite + Unpin),
    tally: &Tally,
) -> Result<(), ConnectionFault> {
    match length {
        BodyLength::Bytes(length) => Ok(send_exactly(reader, pending, length, writer, tally).await?),
        BodyLength::Chunked => send_chunks(reader, pending, writer, tally).await,
    }
}

async fn send_chunks(
    reader: &mut (impl AsyncRead + Unpin),
    pending: &mut Vec<u8>,
    writer: &mut (impl AsyncWrite + Unpin),
    tally: &Tally,
) -> Result<(), ConnectionFault> {
    loop {
        match chunk_start(pending)? {
            ChunkStart::Incomplete => fill(reader, pending).await?,
            ChunkStart::Chunk { size, after } => {
                pending.drain(..after);
                send(writer, format!("{size:x}\r\n").as_bytes(), tally).await?;
                send_exactly(reader, pending, size, writer, tally).await?;
                while pending.len() < 2 {
                    fill(reader, pending).await?;
                }
                if !pending.starts_with(b"\r\n") {
                    return Err(RequestHeadError::Chunk.into());
                }
                pending.drain(..2);
                send(writer, b"\r\n", tally).await?;
            }
            ChunkStart::End { after } => {
                pending.drain(..after);
                return Ok(send(writer, b"0\r\n\r\n", tally).await?);
            }
        }
    }
}

async fn send_exactly(
    reader: &mut (impl AsyncRead + Unpin),
    pending: &mut Vec<u8>,
    length: u64,
    writer: &mut (impl AsyncWrite + Unpin),
    tally: &Tally,
) -> io::Result<()> {
    let mut left = length;
    while left > 0 {
        if pending.is_empty() {
            fill(reader, pending).await?;
        }
        let count = usize::try_from(left).map_or(pending.len(), |left| left.min(pending.len()));
        send(writer, &pending[..count], tally).await?;
        pending.drain(..count);
        left -= count as u64;
    }
    Ok(())
}

/// Sends bytes to the server.
pub(crate) async fn send(
    writer: &mut (impl AsyncWrite + Unpin),
    bytes: &[u8],
    tally: &Tally,
) -> io::Result<()> {
    writer.write_all(bytes).await?;
    tally.count(Direction::Up, bytes.len());
    Ok(())
}
