"""Clients that try to get past the proxy. Takes what to try and the ports of both servers of the test: one that is listed
and one that is not. Without a proxy they go to the server itself. Prints the word of an effect if the server replies."""
import base64
import os
import re
import socket
import ssl
import sys
import threading

kind, listed, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
found = re.search(r"//([^:@/]*)(?::[^@]*)?@([^:/]+):(\d+)", os.environ.get("HTTPS_PROXY", ""))
END = "\r\n\r\n"


def plain(host):
    return f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close{END}".encode()


def hello(name):
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.check_hostname = False
    try:
        context.wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


def connect(server):
    connection = socket.create_connection(("127.0.0.1", server), timeout=3)
    connection.settimeout(3)
    return connection


def read(connection):
    text = b""
    try:
        while piece := connection.recv(4096):
            text += piece
    except OSError as error:
        print(error)
    return text


def send(request, server, then=b"", direct=b""):
    """Sends the request to the proxy, and what follows once that was granted. Gives the reply."""
    if not found:
        connection = connect(server)
        connection.sendall(direct or then or plain("127.0.0.1"))
        return read(connection)
    token = base64.b64encode(f"{found[1]}:x".encode()).decode()
    connection = socket.create_connection((found[2], int(found[3])), timeout=3)
    connection.settimeout(3)
    connection.sendall(request.replace("AUTH", f"Proxy-Authorization: Basic {token}").encode())
    if then:
        head = connection.recv(4096)
        if b" 200 " not in head:
            return head
        connection.sendall(then)
    return read(connection)


def connected(target, server, then, host=None):
    return send(f"CONNECT {target} HTTP/1.1\r\nHost: {host or target}\r\nAUTH{END}", server, then)


def relay():
    """A relay inside, and a client of it."""
    listener = socket.create_server(("127.0.0.1", 0))

    def carry():
        client, _ = listener.accept()
        server = connect(port)
        server.sendall(client.recv(4096))
        client.sendall(read(server))
        client.close()

    threading.Thread(target=carry, daemon=True).start()
    connection = connect(listener.getsockname()[1])
    connection.sendall(plain("127.0.0.1"))
    return read(connection)


own, other = f"listed.test:{listed}", f"127.0.0.1:{port}"
post = f"POST http://{own}/ HTTP/1.1\r\nHost: {own}\r\nAUTH\r\n"
inner = f"GET http://{other}/ HTTP/1.1\r\nHost: {other}\r\nAUTH{END}"
kinds = {
    # What the settings allow: the others prove something only if this works.
    "allowed": lambda: connected(own, listed, plain(own)),
    "tls-name": lambda: connected(own, listed, hello("other.test")),
    "no-tls-name": lambda: connected(own, listed, hello(None)),
    "host": lambda: send(f"GET http://{own}/ HTTP/1.1\r\nHost: other.test\r\nAUTH{END}", listed, b"", plain("other.test")),
    "user": lambda: connected(f"{own}@{other}", port, plain(other)),
    "host-listed": lambda: connected(other, port, plain(other), own),
    "decimal": lambda: connected(f"2130706433:{port}", port, plain(other)),
    "mapped": lambda: connected(f"[::ffff:7f00:1]:{port}", port, plain(other)),
    "inside": lambda: connected(f"inside.test:{port}", port, plain(other)),
    "two-hosts": lambda: connected(other, port, plain(other), f"{own}\r\nHost: {other}"),
    "line-feed": lambda: send(f"CONNECT {own} HTTP/1.1\nHost: {own}\nAUTH\n\nCONNECT {other} HTTP/1.1\r\nHost: {other}\r\nAUTH{END}", port, plain(other)),
    "pipelined": lambda: send(f"GET http://{own}/ HTTP/1.1\r\nHost: {own}\r\nAUTH{END}{inner}", port),
    "two-lengths": lambda: send(f"{post}Content-Length: 5\r\nTransfer-Encoding: chunked{END}0{END}{inner}", port),
    "relay": relay,
}
reply = kinds[kind]()
print("EFF" + "ECT" if (b"listed" if kind in ("allowed", "tls-name", "no-tls-name", "host") else b"hello") in reply else reply[:200])
