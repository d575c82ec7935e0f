// Command ttrpc-go is the Go end of the ttrpc interop test: a server that serves, or a
// client that checks, the service interop.Test. Its Rust twin is in crates/ttrpc/tests.
//
// All messages are well-known wrappers, so that neither end generates code.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const service = "interop.Test"

func main() {
	if len(os.Args) != 3 {
		fail(errors.New("usage: ttrpc-go server|client SOCKET"))
	}
	run := map[string]func(string) error{"server": serve, "client": check}[os.Args[1]]
	if run == nil {
		fail(fmt.Errorf("no mode %q", os.Args[1]))
	}
	if err := run(os.Args[2]); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// serve ends when its standard input does, so that it cannot outlive the test.
func serve(socket string) error {
	server, err := ttrpc.NewServer()
	if err != nil {
		return err
	}
	server.RegisterService(service, &ttrpc.ServiceDesc{
		Methods: map[string]ttrpc.Method{
			"Echo": unary(func(_ context.Context, in *wrapperspb.BytesValue) (any, error) {
				return in, nil
			}),
			"Empty": unary(func(_ context.Context, _ *emptypb.Empty) (any, error) {
				return &emptypb.Empty{}, nil
			}),
			"Metadata": unary(metadata),
			"Fail": unary(func(_ context.Context, in *wrapperspb.Int64Value) (any, error) {
				return nil, status.Errorf(codes.Code(in.Value), "code %d", in.Value)
			}),
			"Sleep": unary(func(ctx context.Context, in *wrapperspb.Int64Value) (any, error) {
				select {
				case <-time.After(time.Duration(in.Value) * time.Millisecond):
					return &emptypb.Empty{}, nil
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}),
		},
		Streams: map[string]ttrpc.Stream{
			"Count":  {Handler: count, StreamingServer: true},
			"Sum":    {Handler: sum, StreamingClient: true},
			"Double": {Handler: double, StreamingClient: true, StreamingServer: true},
		},
	})
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = server.Close()
	}()
	fmt.Println("ready")
	if err := server.Serve(context.Background(), listener); !errors.Is(err, ttrpc.ErrServerClosed) {
		return err
	}
	return nil
}

func unary[T any](handle func(context.Context, *T) (any, error)) ttrpc.Method {
	return func(ctx context.Context, unmarshal func(any) error) (any, error) {
		in := new(T)
		if err := unmarshal(in); err != nil {
			return nil, err
		}
		return handle(ctx, in)
	}
}

// metadata answers with the values of a key and whether there is a deadline.
func metadata(ctx context.Context, key *wrapperspb.StringValue) (any, error) {
	md, _ := ttrpc.GetMetadata(ctx)
	values, _ := md.Get(key.Value)
	_, limited := ctx.Deadline()
	return wrapperspb.String(fmt.Sprintf("%s %v", strings.Join(values, ","), limited)), nil
}

// count fails at 13, after its items.
func count(_ context.Context, stream ttrpc.StreamServer) (any, error) {
	var to wrapperspb.Int64Value
	if err := stream.RecvMsg(&to); err != nil {
		return nil, err
	}
	for i := range to.Value {
		if err := stream.SendMsg(wrapperspb.Int64(i)); err != nil {
			return nil, err
		}
	}
	if to.Value == 13 {
		return nil, status.Error(codes.Unavailable, "unlucky")
	}
	return nil, nil
}

func sum(_ context.Context, stream ttrpc.StreamServer) (any, error) {
	var total int64
	err := each(stream.RecvMsg, func(n int64) error { total += n; return nil })
	return wrapperspb.Int64(total), err
}

func double(_ context.Context, stream ttrpc.StreamServer) (any, error) {
	return nil, each(stream.RecvMsg, func(n int64) error {
		return stream.SendMsg(wrapperspb.Int64(2 * n))
	})
}

func each(recv func(any) error, do func(int64) error) error {
	for {
		var n wrapperspb.Int64Value
		switch err := recv(&n); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := do(n.Value); err != nil {
			return err
		}
	}
}

// check runs every case against a server and stops at the first that fails.
func check(socket string) error {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	client := ttrpc.NewClient(conn)
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()

	cases := []struct {
		name string
		run  func(context.Context, *ttrpc.Client) error
	}{
		{"payloads", payloads},
		{"empty", empty},
		{"metadata", metadataArrives},
		{"statuses", statuses},
		{"unknown names", unknownNames},
		{"malformed argument", malformed},
		{"deadline", deadline},
		{"oversize", oversize},
		{"concurrent", concurrent},
		{"server stream", serverStream},
		{"client stream", clientStream},
		{"duplex", duplex},
	}
	for _, c := range cases {
		if err := c.run(ctx, client); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		fmt.Println("ok", c.name)
	}
	return nil
}

func payloads(ctx context.Context, client *ttrpc.Client) error {
	for _, size := range []int{0, 1, 4085, 4086, 4087, 36 << 10, 1 << 20, 4<<20 - 100} {
		want := bytes.Repeat([]byte{0xA5}, size)
		var got wrapperspb.BytesValue
		if err := client.Call(ctx, service, "Echo", wrapperspb.Bytes(want), &got); err != nil {
			return fmt.Errorf("%d bytes: %w", size, err)
		}
		if !bytes.Equal(got.Value, want) {
			return fmt.Errorf("%d bytes came back as %d others", size, len(got.Value))
		}
	}
	return nil
}

func empty(ctx context.Context, client *ttrpc.Client) error {
	return client.Call(ctx, service, "Empty", &emptypb.Empty{}, &emptypb.Empty{})
}

func metadataArrives(ctx context.Context, client *ttrpc.Client) error {
	md := ttrpc.MD{}
	md.Append("Key", "1", "2")
	ask := func(ctx context.Context) (string, error) {
		var got wrapperspb.StringValue
		err := client.Call(ctx, service, "Metadata", wrapperspb.String("key"), &got)
		return got.Value, err
	}
	if got, err := ask(ttrpc.WithMetadata(ctx, md)); err != nil || got != "1,2 true" {
		return fmt.Errorf("with metadata and deadline: %q, %w", got, err)
	}
	if got, err := ask(context.Background()); err != nil || got != " false" {
		return fmt.Errorf("with none: %q, %w", got, err)
	}
	return nil
}

func statuses(ctx context.Context, client *ttrpc.Client) error {
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		err := client.Call(ctx, service, "Fail", wrapperspb.Int64(int64(code)), &emptypb.Empty{})
		if err := wantStatus(err, code, fmt.Sprintf("code %d", code)); err != nil {
			return err
		}
	}
	return nil
}

func unknownNames(ctx context.Context, client *ttrpc.Client) error {
	err := client.Call(ctx, "no.Such", "Echo", &emptypb.Empty{}, &emptypb.Empty{})
	if err := wantStatus(err, codes.Unimplemented, "service no.Such"); err != nil {
		return err
	}
	err = client.Call(ctx, service, "NoSuch", &emptypb.Empty{}, &emptypb.Empty{})
	return wantStatus(err, codes.Unimplemented, "method NoSuch")
}

func malformed(ctx context.Context, client *ttrpc.Client) error {
	err := client.Call(ctx, service, "Metadata", wrapperspb.Int64(7), &emptypb.Empty{})
	return wantStatus(err, codes.InvalidArgument, "")
}

func deadline(ctx context.Context, client *ttrpc.Client) error {
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	err := client.Call(short, service, "Sleep", wrapperspb.Int64(10_000), &emptypb.Empty{})
	if !errors.Is(err, context.DeadlineExceeded) && status.Code(err) != codes.DeadlineExceeded {
		return fmt.Errorf("got %w", err)
	}
	return empty(ctx, client)
}

func oversize(ctx context.Context, client *ttrpc.Client) error {
	// Asks for more than may be answered.
	err := client.Call(ctx, service, "Big", wrapperspb.Int64(4<<20), &wrapperspb.BytesValue{})
	if err := wantStatus(err, codes.ResourceExhausted, ""); err != nil {
		return err
	}
	return empty(ctx, client)
}

func concurrent(ctx context.Context, client *ttrpc.Client) error {
	errs := make(chan error, 64)
	var group sync.WaitGroup
	for i := range cap(errs) {
		group.Go(func() {
			want := bytes.Repeat([]byte{byte(i)}, 1000*i)
			for range 20 {
				var got wrapperspb.BytesValue
				err := client.Call(ctx, service, "Echo", wrapperspb.Bytes(want), &got)
				if err != nil || !bytes.Equal(got.Value, want) {
					errs <- fmt.Errorf("caller %d: %w", i, err)
					return
				}
			}
		})
	}
	group.Wait()
	close(errs)
	return <-errs
}

func serverStream(ctx context.Context, client *ttrpc.Client) error {
	for _, to := range []int64{0, 1, 13, 1000} {
		desc := &ttrpc.StreamDesc{StreamingServer: true}
		stream, err := client.NewStream(ctx, desc, service, "Count", wrapperspb.Int64(to))
		if err != nil {
			return err
		}
		var next int64
		err = each(stream.RecvMsg, func(n int64) error {
			if n != next {
				return fmt.Errorf("got %d in place of %d", n, next)
			}
			next++
			return nil
		})
		if to == 13 {
			err = wantStatus(err, codes.Unavailable, "unlucky")
		}
		if err != nil || next != to {
			return fmt.Errorf("of %d came %d: %w", to, next, err)
		}
	}
	return nil
}

func clientStream(ctx context.Context, client *ttrpc.Client) error {
	for _, to := range []int64{0, 100} {
		desc := &ttrpc.StreamDesc{StreamingClient: true}
		stream, err := client.NewStream(ctx, desc, service, "Sum", nil)
		if err != nil {
			return err
		}
		for n := range to + 1 {
			if err := stream.SendMsg(wrapperspb.Int64(n)); err != nil {
				return err
			}
		}
		if err := stream.CloseSend(); err != nil {
			return err
		}
		var total wrapperspb.Int64Value
		if err := stream.RecvMsg(&total); err != nil || total.Value != to*(to+1)/2 {
			return fmt.Errorf("sum to %d is %d: %w", to, total.Value, err)
		}
	}
	return nil
}

func duplex(ctx context.Context, client *ttrpc.Client) error {
	desc := &ttrpc.StreamDesc{StreamingClient: true, StreamingServer: true}
	stream, err := client.NewStream(ctx, desc, service, "Double", nil)
	if err != nil {
		return err
	}
	for n := range int64(200) {
		if err := stream.SendMsg(wrapperspb.Int64(n)); err != nil {
			return err
		}
		var got wrapperspb.Int64Value
		if err := stream.RecvMsg(&got); err != nil || got.Value != 2*n {
			return fmt.Errorf("twice %d is %d: %w", n, got.Value, err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	if err := stream.RecvMsg(&wrapperspb.Int64Value{}); !errors.Is(err, io.EOF) {
		return fmt.Errorf("no end: %w", err)
	}
	return nil
}

// wantStatus fails unless err has the code and, where a text is given, that text.
func wantStatus(err error, code codes.Code, text string) error {
	got, ok := status.FromError(err)
	if err == nil || !ok || got.Code() != code || text != "" && got.Message() != text {
		return fmt.Errorf("want %v %q, got %w", code, text, err)
	}
	return nil
}
