// Command grpc-go calls Version on a CRI socket by each kind of target that Go programs use for a
// unix socket. With some of them grpc-go sends the path of the socket as :authority.
//
// Messages are read and written as unknown fields, so that no code is generated.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"
)

// calls is the number of calls on the connection of each target.
const calls = 1000

func main() {
	if len(os.Args) != 2 {
		fail(errors.New("usage: grpc-go SOCKET"))
	}
	socket := os.Args[1]
	for _, way := range []struct{ target, authority string }{
		{"unix://" + socket, ""},
		{"passthrough:///" + socket, ""},
		{"passthrough:///unix://" + socket, ""},
		{"passthrough:///socket", socket},
		{"passthrough:///socket", url.PathEscape(socket)},
	} {
		version, err := ask(socket, way.target, way.authority)
		if err != nil {
			fail(fmt.Errorf("target %q, authority %q: %w", way.target, way.authority, err))
		}
		fmt.Printf("target %q, authority %q: %s\n", way.target, way.authority, version)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func ask(socket, target, authority string) (string, error) {
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var dialer net.Dialer
			return dialer.DialContext(ctx, "unix", socket)
		}),
	}
	if authority != "" {
		options = append(options, grpc.WithAuthority(authority))
	}
	client, err := grpc.NewClient(target, options...)
	if err != nil {
		return "", err
	}
	defer client.Close()
	var first string
	for call := range calls {
		version, err := askOnce(client, call)
		if err != nil {
			return "", fmt.Errorf("call %d: %w", call, err)
		}
		if call == 0 {
			first = version
		} else if version != first {
			return "", fmt.Errorf("call %d: %q, and %q before", call, version, first)
		}
	}
	return first, nil
}

// askOnce sends metadata that changes from call to call, so that entries are added to the HPACK table
// of the connection and evicted from it.
func askOnce(client *grpc.ClientConn, call int) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx,
		"x-text", strings.Repeat("v", call%97),
		"x-few", fmt.Sprint(call%13),
		"x-call-bin", fmt.Sprint(call))
	var answer emptypb.Empty
	err := client.Invoke(ctx, "/runtime.v1.RuntimeService/Version", &emptypb.Empty{}, &answer)
	if err != nil {
		return "", err
	}
	return runtime(answer.ProtoReflect().GetUnknown())
}

// runtime reads the name and version of the runtime, fields 2 and 3 of VersionResponse.
func runtime(response []byte) (string, error) {
	var words []string
	for len(response) > 0 {
		number, kind, n := protowire.ConsumeTag(response)
		if n < 0 || kind != protowire.BytesType {
			return "", errors.New("not a VersionResponse")
		}
		value, m := protowire.ConsumeBytes(response[n:])
		if m < 0 {
			return "", protowire.ParseError(m)
		}
		if number == 2 || number == 3 {
			words = append(words, string(value))
		}
		response = response[n+m:]
	}
	return strings.Join(words, " "), nil
}
