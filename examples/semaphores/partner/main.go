// Command partner fetches orders from a partner that serves ten calls at one time, of all hosts together.
//
//	PARTNER_URL=https://partner.example partner 17 18,19,20
//
// Each argument is one call. A bulk call, for several orders, counts as two.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

const (
	capacity = 10              // calls that the partner serves at one time
	timeout  = 2 * time.Minute // of a call
	// When a caller dies, the partner may work on its call for so long. Its permits are free after that.
	crashDelay = time.Second
)

func main() {
	ctx := context.Background()
	client, err := locksidecar.Dial(ctx, "")
	if err != nil {
		log.Fatal(err)
	}
	api := client.Semaphore("partner-api", capacity)

	var calls sync.WaitGroup
	var failed atomic.Bool
	for _, orders := range os.Args[1:] {
		calls.Go(func() {
			answer, err := fetch(ctx, api, orders)
			if err != nil {
				log.Printf("%s: %v", orders, err)
				failed.Store(true)
				return
			}
			fmt.Printf("%s: %s\n", orders, answer)
		})
	}
	calls.Wait()
	if failed.Load() {
		os.Exit(1) // the session ends with the process
	}
}

// fetch waits until the call is allowed, and makes it. A call that was cut off is made again: to fetch an order twice
// does no harm.
func fetch(ctx context.Context, api *locksidecar.Semaphore, orders string) (answer string, err error) {
	permits := 1
	if strings.Contains(orders, ",") {
		permits = 2
	}
	for {
		err = api.Do(ctx, permits, func(ctx context.Context) (err error) {
			answer, err = callPartner(ctx, orders) // ctx ends if the permits are lost
			return err
		}, locksidecar.WithCrashDelay(crashDelay))
		if !errors.Is(err, locksidecar.ErrLost) && !errors.Is(err, locksidecar.ErrUnavailable) {
			return answer, err
		}
		log.Printf("%s: %v; the call is made again", orders, err) // Do has waited for the sidecar or its Redis
	}
}

func callPartner(ctx context.Context, orders string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	address := os.Getenv("PARTNER_URL") + "/orders?ids=" + url.QueryEscape(orders)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("the partner answered %s", response.Status)
	}
	text, err := io.ReadAll(response.Body)
	return string(text), err
}
